"""scikit-learn: trees that are grown on one matrix by two processes' worth of threads."""

import hashlib

import numpy
from sklearn.ensemble import RandomForestClassifier

random = numpy.random.default_rng(3)
rows = random.integers(0, 1000, (300_000, 40)).astype(numpy.float32)
classes = (rows[:, 0] * 3 + rows[:, 1] > rows[:, 2] * 2 + 900).astype(int) + (rows[:, 3] > 700)
forest = RandomForestClassifier(n_estimators=8, max_depth=16, random_state=4, n_jobs=2)
forest.fit(rows, classes)
found = forest.predict(rows)
print(len(found), int((found == classes).sum()), hashlib.sha256(found.tobytes()).hexdigest())
