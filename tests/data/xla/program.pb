
½
step*

region_4.7
	tuple.267fusion˜«(0«d
wrapped_compare_computation@
	fwd.200.1fusion:'%step/micro/block.0/attn/attention/fwd˜®(0®]

region_7.8J
wrapped_comparefusion:'%step/micro/block.0/attn/attention/fwd˜²²(0²0
region_4.7.clone
	tuple.270fusion˜Ü(0Üf
wrapped_compare_computation.1@
	fwd.864.1fusion:'%step/micro/block.0/attn/attention/fwd˜ß(0ße
region_7.8.cloneL
wrapped_compare.1fusion:'%step/micro/block.0/attn/attention/fwd˜ã²( 0ã2
region_4.7.clone.1
	tuple.273fusion˜(.0f
wrapped_compare_computation.2@
	fwd.865.1fusion:'%step/micro/block.0/attn/attention/fwd˜(/0g
region_7.8.clone.1L
wrapped_compare.2fusion:'%step/micro/block.0/attn/attention/fwd˜”²/(00”2
region_4.7.clone.2
	tuple.276fusion˜¾(>0¾f
wrapped_compare_computation.3@
	fwd.866.1fusion:'%step/micro/block.0/attn/attention/fwd˜Á(?0Ág
region_7.8.clone.2L
wrapped_compare.3fusion:'%step/micro/block.0/attn/attention/fwd˜Å²?(@0Å2
region_4.7.clone.3
	tuple.279fusion˜ï(N0ïf
wrapped_compare_computation.4@
	fwd.867.1fusion:'%step/micro/block.0/attn/attention/fwd˜ò(O0òg
region_7.8.clone.3L
wrapped_compare.4fusion:'%step/micro/block.0/attn/attention/fwd˜ö²O(P0ö2
region_4.7.clone.4
	tuple.282fusion˜ (^0 f
wrapped_compare_computation.5@
	fwd.868.1fusion:'%step/micro/block.0/attn/attention/fwd˜£(_0£g
region_7.8.clone.4L
wrapped_compare.5fusion:'%step/micro/block.0/attn/attention/fwd˜§²_(`0§®
main.199C
fwd.3935fusion:'%step/micro/block.0/attn/attention/fwd˜þ;²C
fwd.4047fusion:'%step/micro/block.1/attn/attention/fwd˜“<²C
fwd.4159fusion:'%step/micro/block.2/attn/attention/fwd˜¨<².C
fwd.4271fusion:'%step/micro/block.3/attn/attention/fwd˜½<²>C
fwd.4383fusion:'%step/micro/block.4/attn/attention/fwd˜Ò<²NC
fwd.4495fusion:'%step/micro/block.5/attn/attention/fwd˜ç<²^(œ0“?