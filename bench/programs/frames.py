"""pandas: a frame that is grouped, joined and sorted."""

import hashlib

import numpy
import pandas

random = numpy.random.default_rng(2)
size = 1_500_000
visits = pandas.DataFrame({
    "person": random.integers(0, 50_000, size),
    "seconds": random.integers(0, 1000, size),
    "page": pandas.Series(random.integers(0, 5000, size)).map("page {}".format),
})  # fmt: skip
people = pandas.DataFrame({"person": range(50_000), "group": [f"group {person % 97}" for person in range(50_000)]})
joined = visits.merge(people, on="person")
totals = joined.groupby(["group", "page"])["seconds"].agg(["sum", "count", "max"]).reset_index()
totals = totals.sort_values(["sum", "group", "page"])
print(len(joined), len(totals), hashlib.sha256(totals.to_csv().encode()).hexdigest())
