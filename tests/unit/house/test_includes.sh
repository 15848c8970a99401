#!/usr/bin/env bash
# Includes run one way between the rooms; the checker notices planted faults before it may say so.
exec python3 tools/include_direction.py
