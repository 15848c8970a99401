#!/usr/bin/env bash
# Checks data/machines.json against its schema, and that the schema refuses damaged copies. Skipped
# without python's jsonschema.
set -euo pipefail
python3 -c 'import jsonschema' 2>/dev/null || { echo 'skip: needs python3-jsonschema'; exit 77; }
python3 - docs/schema/machines.schema.json data/machines.json <<'EOF'
import copy, json, sys
import jsonschema

schema, data = (json.load(open(name)) for name in sys.argv[1:3])
jsonschema.Draft202012Validator.check_schema(schema)
check = jsonschema.Draft202012Validator(schema)
for fault in check.iter_errors(data):
    sys.exit(f"{'/'.join(map(str, fault.absolute_path))}: {fault.message}")

def broken(change):
    copy_of = copy.deepcopy(data)
    change(next(m for m in copy_of["machines"] if m["prices"] and "sb" in m.get("editions", {})))
    return copy_of

FAULTS = {
    "an unknown field": lambda m: m.update(memory=1),
    "no source": lambda m: m.pop("source"),
    "an unknown dtype": lambda m: m["flops"].update(f99=1e12),
    "a negative rate": lambda m: m.update(memory_bps=-1),
    "a text for a number": lambda m: m.update(memory_bytes="16 GB"),
    "an unknown rule": lambda m: m["topology"].update(wrap="sometimes"),
    "a price without a source": lambda m: m["prices"][0].pop("source"),
    "an unknown field of an edition": lambda m: m["editions"]["sb"].update(speed=1),
}
for name, change in FAULTS.items():
    if check.is_valid(broken(change)):
        sys.exit(f"the schema takes {name}")
EOF
