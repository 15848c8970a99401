#!/usr/bin/env bash
# The cost of a plan: list prices, other tiers of a source, typed prices. Without a price, the
# output says so and names the tiers that exist.
. "$(dirname "$0")/lib.sh"
UVA=(uva --batch 16 --dtype bf16 --remat block)

status 0 "$RAFTER" plan "${UVA[@]}" --on tpu-v6e --json && {
  holds out 'd["cost"]["price_tier"] == "list" and d["cost"]["usd_per_chip_hour"] == 2.7 and [(p["tier"], p["usd_per_chip_hour"]) for p in d["cost"]["prices"]] == [("list", 2.7), ("committed", 1.61), ("flex-start", 1.35)]' 'the tiers of a machine'
  holds out 'all(abs(p["usd_per_million_tokens"] - p["usd_per_chip_hour"] / 3600 / d["rate"]["tokens_per_second"] * 1e6) < 1e-9 and p["date"] and p["source"] for p in d["cost"]["prices"])' 'each with its cost and source'
}
status 0 "$RAFTER" plan "${UVA[@]}" --on tpu-v6e --price committed --tokens 1G --json &&
  holds out 'd["cost"]["price_tier"] == "committed" and abs(d["cost"]["usd_for_tokens"] - 1.61 * d["cost"]["seconds_for_tokens"] / 3600) < 1e-9 and abs(d["cost"]["tokens_per_usd"] * d["cost"]["usd_per_million_tokens"] - 1e6) < 1e-3' '--price committed'
status 0 "$RAFTER" plan "${UVA[@]}" --on tpu-v6e --price 0.5 --budget 9h --json &&
  holds out 'd["cost"]["price_tier"] == "given" and abs(d["budget"]["usd"] - 4.5) < 1e-9' '--price USD'
status 0 "$RAFTER" plan "${UVA[@]}" --on tpu-v6e --price flex-start &&
  says '1.35 USD per chip hour \(flex-start; --price takes list 2.70, committed 1.61, flex-start 1.35\)' out
status 0 "$RAFTER" plan "${UVA[@]}" --on tpu-v6e --sweep price=list,committed,0.9 --json &&
  holds out '[r["cost"]["usd_per_chip_hour"] for r in d["rows"]] == [2.7, 1.61, 0.9]' 'a sweep over prices'
# This machine has only a committed price. No list price is invented, and the error names the tier
# that exists.
status 0 "$RAFTER" plan "${UVA[@]}" --on b200 --json &&
  holds out 'd["cost"]["usd_per_chip_hour"] is d["cost"]["price_tier"] is None and any("no list price of b200 is known" in a and "committed 6.95" in a for a in d["assumptions"])' 'no list price'
status 0 "$RAFTER" plan "${UVA[@]}" --on b200 --price committed --json &&
  holds out 'd["cost"]["usd_per_chip_hour"] == 6.95'
refuses 2 "no price 'list' of b200 .*has committed 6.95" "$RAFTER" plan "${UVA[@]}" --on b200 --price list
refuses 2 "no price 'spot' of tpu-v5e .*has list 1.20" "$RAFTER" plan "${UVA[@]}" --on tpu-v5e --price spot
status 0 "$RAFTER" plan "${UVA[@]}" --on a5000 &&
  says '^cost +no price of a5000 is known; --price 2.50 sets USD per chip hour$' out
refuses 2 'committed. of tpu-v5e is known: the data sheet has list 1.20 USD' \
  "$RAFTER" plan "${UVA[@]}" --on tpu-v5e --price committed
refuses 2 'no price of a5000' "$RAFTER" plan "${UVA[@]}" --on a5000 --price list
refuses 2 'no price of tpu-v7x' "$RAFTER" roofline cost --flops 1e20 --price committed --on tpu-v7x
for bad in 0 -1 1e9; do refuses 2 'price is out of range' "$RAFTER" plan "${UVA[@]}" --on a5000 --price=$bad; done
refuses 2 'price' "$RAFTER" plan "${UVA[@]}" --on a5000 --price=
# The price of a chip with two devices does not depend on how the devices are counted.
status 0 "$RAFTER" plan "${UVA[@]}" --on tpu-v7x:2x2x1 --mesh fsdp=8 --price 12 --budget 1h --json &&
  holds out 'd["machine"]["chips"] == 8 and abs(d["budget"]["usd"] - 48) < 1e-9' 'two devices a chip'
# Both machines of a service use the requested price tier.
status 0 "$RAFTER" plan gemma3-1b --dtype bf16 --job serve --batch 8 --requests 16 --rate 1 --on tpu-v6e --prefill-on tpu-v6e --price committed --json &&
  holds out 'abs(d["serving"]["rates"][0]["usd_per_million_tokens"] * d["serving"]["rates"][0]["tokens_per_second"] / 1e6 * 3600 - 2 * 1.61) < 1e-9' 'the prices of two machines'
refuses 2 "no price 'committed' of tpu-v5p" "$RAFTER" plan gemma3-1b --dtype bf16 --job serve --on tpu-v6e --prefill-on tpu-v5p --price committed
# The roofline commands take the same options.
status 0 "$RAFTER" roofline cost --flops 3.6e21 --seconds 1h --on tpu-v6e --price committed --json &&
  holds out 'abs(d["usd"] - 1.61) < 1e-9'
status 0 "$RAFTER" roofline decode --parameters 8e9 --batch 8 --chips 4 --on tpu-v6e --price 2 --json &&
  holds out 'abs(d["usd_per_million_tokens"] - 4 * 2 / 3600 / d["tokens_per_second"] * 1e6) < 1e-9'
status 0 "$RAFTER" roofline cost --flops 1e20 --on b200 --json &&
  holds out 'any("committed 6.95" in n for n in d["notes"]) and d["usd"] is None'
finish
