# Makes the links test_NAME to a program of tests. A folder that was built before may have a program
# with this name.
string(REPLACE "|" ";" NAMES "${NAMES}")
foreach(name IN LISTS NAMES)
  file(CREATE_LINK ${PROGRAM} ${FOLDER}/test_${name} SYMBOLIC)
endforeach()
