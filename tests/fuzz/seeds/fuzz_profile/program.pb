
=5
f:step/micro/up˜
g
h:step/end/adamw
stepsettings