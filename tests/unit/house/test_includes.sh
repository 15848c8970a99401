#!/usr/bin/env bash
# Includes run in one direction between rooms. The checker first has to find planted faults.
exec python3 tools/include_direction.py
