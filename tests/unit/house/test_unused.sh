#!/usr/bin/env bash
# Every symbol that a file of src exports is used by another file. The check first has to find
# planted faults.
exec python3 tools/unused.py "$BUILD"
