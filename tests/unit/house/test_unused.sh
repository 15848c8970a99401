#!/usr/bin/env bash
# Every symbol that a file of src exports is used by another one; the check sees planted faults first.
exec python3 tools/unused.py "$BUILD"
