#!/usr/bin/env bash
# The checker of published runs takes any table in the format, names rows that it cannot plan, and
# fails if its predictions are far off.
. "$(dirname "$0")/lib.sh"
CHECK=$(dirname "$RAFTER")/check_published_runs
HEAD=$'# a comment\nid\tsystem\tmachine\tchips\tmodel\tseq\tprecision\ttokens_per_s_per_chip\tpublished\tsource'
row() { printf '%s\tsomebody\ta5000\t1\tuva\t512\tbf16\t%s\t%s\tmade up\n' "$1" "$2" "$3"; }

{ echo "$HEAD"; row A 54000 '0.7 s for 32,768 tokens, no remat'; row B 44000 'remat MLP + attention, 64 sequences a device'; } >near.tsv
status 0 "$CHECK" near.tsv && {
  says '^\| A \| a5000 x 1 \| uva, 512, bf16 \| one chip; sequences: 64 a chip.*remat none, ' out
  says '^\| B .*one chip; sequences: 64 a chip.*remat mlp\+attn, ' out
  says 'Median error over 2 runs' out
}
{ echo "$HEAD"; row A 44000 'no remat'; row B 9000 'no remat'; row C 200000 'no remat'; } >far.tsv
status 1 "$CHECK" far.tsv && says 'median error'
{ echo "$HEAD"; row A 54000 ''; row B 54000 ''; printf 'C\tx\ta5000\t1\tnobody\t512\tbf16\t1\t\t\n'; } >unknown.tsv
status 0 "$CHECK" unknown.tsv && says '^C is not planned: .*nobody' out
# Optional columns of a row: mesh, batch, microbatches, recomputation. They take precedence over the
# words of the text.
wide() { printf '%s\tsomebody\th100-sxm\t8\tuva\t512\tbf16\t%s\t%s\tmade up\t%s\t%s\t%s\t%s\n' "$@"; }
{ echo "$HEAD"; wide A 60000 'remat block' data=4,tensor=2 64 2 none; wide B 60000 '' '' 128 '' mlp; } >wide.tsv
"$CHECK" wide.tsv >out 2>err
says '^\| A .*data=4, tensor=2.*sequences: 8 a chip in microbatches, remat none, ' out
says '^\| B .*fsdp=8.*sequences: 16 a chip.*remat mlp, ' out
{ echo "$HEAD"; wide A 60000 '' data=4,rows=2 64 '' ''; wide B 400000 '' '' '' '' ''; } >wide.tsv
status 0 "$CHECK" wide.tsv && says '^A is not planned: .*rows' out
{ echo "$HEAD"; wide A 60000 '' '' none '' ''; } >wide.tsv
status 1 "$CHECK" wide.tsv && says 'batch must be above 0'
printf 'A\tx\ta5000\n' >short.tsv
status 1 "$CHECK" short.tsv && says 'too few columns'
printf 'A\tx\ta5000\t0\tuva\t512\tbf16\t1\t\t\n' >zero.tsv
status 1 "$CHECK" zero.tsv && says 'above 0'
status 1 "$CHECK" nowhere.tsv && says 'cannot open'
: >empty.tsv
status 1 "$CHECK" empty.tsv

# Further options of a row. With --unseen nothing is fitted, so a row is predicted by itself.
{ echo "$HEAD"; wide A 400000 '' data=8 64 1 $'none\tzero=1'; } >options.tsv
status 0 "$CHECK" --unseen options.tsv && says '^\| A .*data=8; ' out && says 'Median error over 1 runs' out
{ echo "$HEAD"; wide A 400000 '' data=8 64 1 $'none\tzero=7'; } >options.tsv
status 1 "$CHECK" --unseen options.tsv && says '^A is not planned: .*zero' out
{ echo "$HEAD"; row A 54000 'no remat'; row B 400000 'no remat'; } >far.tsv
status 1 "$CHECK" --unseen far.tsv && says 'unseen runs.*|median error is above 20 %'
status 2 "$CHECK" --unseen

# The document's table is renewed between its marks, and the rest of the document does not change.
printf 'before\n<!-- published runs: begin -->\nold\n<!-- published runs: end -->\nbehind\n' >document.md
status 0 "$CHECK" near.tsv --write document.md && {
  says '^before$' document.md; says '^behind$' document.md; says '^\| B ' document.md
  grep -q '^old$' document.md && fail "the old table was not replaced"
}
finish
