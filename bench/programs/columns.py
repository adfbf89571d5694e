"""Polars: columns that are grouped, joined and sorted, by its own threads and allocator."""

import hashlib

import polars

size = 4_000_000
numbers = polars.int_range(0, size, eager=True)
visits = polars.DataFrame({"person": numbers * 7919 % 60_013, "seconds": numbers * 31 % 977, "page": numbers * 40503 % 4999})
visits = visits.with_columns(page=polars.format("page {}", "page"))
people = polars.DataFrame({"person": range(60_013), "group": [f"group {person % 97}" for person in range(60_013)]})
joined = visits.join(people, on="person").sort("person", "seconds", "page")
totals = joined.group_by("group", "page").agg(polars.col("seconds").sum(), polars.len()).sort("group", "page")
print(len(joined), len(totals), hashlib.sha256(totals.write_csv().encode()).hexdigest())
