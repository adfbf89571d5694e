#!/usr/bin/env python3
"""A data job that needs more memory than it is given: a day's reporting over a shop's books.

    pagetide run --memory 250M -- python3 examples/analytics.py

It holds about --mib MiB of customers, orders, log lines, price series and documents, builds indices, scans, groups,
joins, sorts and looks up single records at random, as such jobs do. Every result is computed twice by independent
paths, and every record carries a checksum, so a single wrong byte is found. The same seed prints the same result.

stdout: rows and checksum. stderr: seconds of each step and the peak of resident memory. Exit status 1: wrong bytes.
"""

import argparse
import gc
import heapq
import itertools
import operator
import random
import resource
import sys
import time
import zlib
from array import array

BYTES_PER_ORDER = 2740  # with its share of all the structures below
CUSTOMERS_PER_1000_ORDERS = 200
PRODUCTS = 5000
DAYS = 365
REGIONS = ("north", "south", "east", "west", "islands", "abroad")
TICKS_PER_ORDER = 44
DOCUMENTS_PER_1000_ORDERS = 160
LOOKUPS = 150_000

WORDS = (
    "page memory swap order invoice paid shipped returned late early customer supplier store shelf winter summer blue "
    "green small large heavy light metal wooden cotton paper glass steel box bottle crate parcel the a of and with for "
    "under over between north south east west please thank you complaint praise refund discount season stock reserve"
).split()


class Customer:
    __slots__ = ("key", "name", "region", "since_day", "notes", "balance_cents", "crc")

    def __init__(self, key, name, region, since_day, notes, balance_cents):
        self.key, self.name, self.region = key, name, region
        self.since_day, self.notes, self.balance_cents = since_day, notes, balance_cents
        self.crc = self.checksum()

    def checksum(self):
        text = f"{self.key}|{self.name}|{self.region}|{self.since_day}|{self.balance_cents}"
        return zlib.crc32(self.notes, zlib.crc32(text.encode()))


def wrong(what):
    sys.exit(f"analytics: WRONG RESULT: {what}")


def fold(checksum, value):
    """Adds a value to the running checksum."""
    return zlib.crc32(repr(value).encode(), checksum)


# --- The data -------------------------------------------------------------------------------------------------------


class TextSource:
    """Cheap, varied prose: slices of a long random text, so that no two are alike."""

    def __init__(self, rng):
        self.rng = rng
        self.text = " ".join(
            word if number % 7 else f"{word} {number * 2654435761 % 100003}"
            for number, word in enumerate(rng.choices(WORDS, k=400_000))
        ).encode()

    def take(self, length):
        start = int(self.rng.random() * (len(self.text) - length))
        return self.text[start : start + length]


def make_products(rng):
    return [(f"SKU-{i:05d}", rng.choice(WORDS), int(rng.paretovariate(1.2) * 500) % 90_000 + 99) for i in range(PRODUCTS)]


def make_customers(rng, source, count):
    """dict of str -> object, in the order in which they signed up."""
    customers = {}
    for i in range(count):
        key = f"C{i * 7919 % 1_000_003:07d}-{i}"
        name = f"{rng.choice(WORDS).title()} {rng.choice(WORDS).title()}{i}"
        notes = source.take(40 + int(rng.random() * 400))
        region = REGIONS[int(rng.random() ** 1.5 * len(REGIONS))]
        customers[key] = Customer(key, name, region, i * DAYS // count, notes, int(rng.gauss(50_000, 20_000)))
    return customers


def make_orders(rng, source, customer_keys, products, count):
    """A list of tuples, by time. Customers order soon after they signed up, as customers do."""
    orders = []
    for i in range(count):
        near = i * len(customer_keys) // count - int(rng.expovariate(1 / 200))
        customer = customer_keys[max(near, 0)]
        product = int(rng.paretovariate(0.7)) % len(products)
        quantity = 1 + int(rng.expovariate(0.7))
        cents = quantity * products[product][2]
        comment = source.take(30 + int(rng.random() * 250))
        orders.append((i, customer, product, quantity, cents, i * DAYS // count, comment, zlib.crc32(comment, cents)))
    return orders


def make_log(orders, customers):
    """Text records: the same orders as another system wrote them. Half are str, half bytes."""
    log = []
    for number, customer, product, quantity, cents, day, comment, _ in orders:
        line = (
            f'{{"id": {number}, "at": "2024-{day // 31 + 1:02d}-{day % 31 + 1:02d}T{number % 24:02d}:{number % 60:02d}", '
            f'"customer": "{customer}", "region": "{customers[customer].region}", "product": "SKU-{product:05d}", '
            f'"quantity": {quantity}, "cents": {cents}, "day": {day}, "status": "{WORDS[number % 9]}", '
            f'"agent": "web/{number % 13}.{number % 7}", "trace": "{number * 2654435761 % 2**64:016x}", '
            f'"comment": "{comment.decode()}"}}'
        )
        log.append(line if number % 2 else line.encode())
    return log


def make_series(rng, count):
    """Two time series: prices that walk up and down, and when each was seen."""
    steps = rng.randbytes(count)
    prices = array("d", itertools.accumulate((step * 0.01 - 1.275 for step in steps), initial=10_000.0))
    times = array("q", itertools.accumulate(steps, initial=1_700_000_000_000))
    return prices, times


def make_documents(source, rng, count):
    """id -> (crc, body): scans of letters, so to speak. One in eight is already compressed."""
    documents = {}
    for i in range(count):
        body = source.take(1500 + int(rng.random() * 5000))
        if i % 8 == 0:
            body = zlib.compress(body, 1)
        documents[f"doc/{i:06d}"] = (zlib.crc32(body), body)
    return documents


# --- The job --------------------------------------------------------------------------------------------------------


def index_orders(orders):
    """customer -> positions of its orders. Built by one scan."""
    index = {}
    for position, order in enumerate(orders):
        index.setdefault(order[1], []).append(position)
    return index


def revenue_from_orders(orders, customers):
    """Group-by over a join: (region, month) -> cents."""
    revenue = {}
    for order in orders:
        group = (customers[order[1]].region, order[5] // 31)
        revenue[group] = revenue.get(group, 0) + order[4]
    return revenue


def revenue_from_log(log):
    """The same figures by the other path: parsed from the text."""
    revenue = {}
    for line in log:
        if isinstance(line, bytes):
            line = line.decode()
        region = line[line.index('"region": "') + 11 :]
        region = region[: region.index('"')]
        cents = int(line[line.index('"cents": ') + 9 :].split(",", 1)[0])
        day = int(line[line.index('"day": ') + 7 :].split(",", 1)[0])
        group = (region, day // 31)
        revenue[group] = revenue.get(group, 0) + cents
    return revenue


def top_products(orders, products, count):
    """A join with the (small) product table, then the best sellers."""
    sold = [0] * len(products)
    for order in orders:
        sold[order[2]] += order[4]
    if sum(sold) != sum(order[4] for order in orders):
        wrong("the products' revenue does not add up")
    best = heapq.nlargest(count, range(len(sold)), key=sold.__getitem__)
    return [(products[i][0], sold[i]) for i in best]


def top_orders(orders, count):
    """Sorted top k by two ways: a full sort of keys, and a heap."""
    by_sort = sorted(((order[4], order[0]) for order in orders), reverse=True)[:count]
    by_heap = heapq.nlargest(count, ((order[4], order[0]) for order in orders))
    if by_sort != by_heap:
        wrong("the two ways to the largest orders differ")
    return by_sort


def scan_series(prices, times):
    """Extremes and means of the price series, and one look at each end."""
    low, high, total = min(prices), max(prices), sum(prices)
    if not low <= total / len(prices) <= high or not all(map(operator.le, times, itertools.islice(times, 1, None))):
        wrong("the price series is out of order")
    halves = sum(prices[: len(prices) // 2]), sum(prices[len(prices) // 2 :])
    if abs(sum(halves) - total) > 1e-6 * abs(total):
        wrong("the price series does not add up")
    return round(low, 2), round(high, 2), round(total), times[-1]


def scan_documents(documents):
    total = 0
    for crc, body in documents.values():
        if zlib.crc32(body) != crc:
            wrong("a document's checksum")
        total += len(body)
    return total


def look_up(rng, orders, customers, customer_keys, index, documents, count):
    """Single records, anywhere: what makes a job slow when its memory is elsewhere."""
    checksum = 0
    document_keys = list(documents)
    for i in range(count):
        dice = rng.random()
        if i % 3 == 0:
            order = orders[int(dice * len(orders))]
            if zlib.crc32(order[6], order[4]) != order[7]:
                wrong(f"order {order[0]}'s checksum")
            checksum ^= order[7]
        elif i % 3 == 1:
            customer = customers[customer_keys[int(dice * len(customer_keys))]]
            if customer.checksum() != customer.crc:
                wrong(f"customer {customer.key}'s checksum")
            checksum ^= customer.crc
        elif i % 12 == 2:
            crc, body = documents[document_keys[int(dice * len(document_keys))]]
            if zlib.crc32(body) != crc:
                wrong("a document's checksum")
            checksum ^= crc
        else:
            key = customer_keys[int(dice * len(customer_keys))]
            for position in index.get(key, ())[:2]:
                if orders[position][1] != key:
                    wrong(f"the index of customer {key}")
                checksum += position
    return checksum


class Steps:
    """Says on stderr how long each step took."""

    def __init__(self):
        self.last = time.monotonic()

    def done(self, name):
        now = time.monotonic()
        print(f"  {name:<24}{now - self.last:7.2f} s", file=sys.stderr)
        self.last = now


def run(mib, seed):
    steps = Steps()
    rng = random.Random(seed)
    order_count = mib * 2**20 // BYTES_PER_ORDER
    source = TextSource(rng)
    products = make_products(rng)
    customers = make_customers(rng, source, order_count * CUSTOMERS_PER_1000_ORDERS // 1000)
    customer_keys = list(customers)
    orders = make_orders(rng, source, customer_keys, products, order_count)
    log = make_log(orders, customers)
    prices, times = make_series(rng, order_count * TICKS_PER_ORDER)
    documents = make_documents(source, rng, order_count * DOCUMENTS_PER_1000_ORDERS // 1000)
    steps.done("generate")

    index = index_orders(orders)
    steps.done("index")
    revenue = revenue_from_orders(orders, customers)
    if revenue != revenue_from_log(log):
        wrong("revenue from the orders and from the log differ")
    steps.done("group by")
    best, largest = top_products(orders, products, 20), top_orders(orders, 100)
    steps.done("join and top k")
    series, document_bytes = scan_series(prices, times), scan_documents(documents)
    steps.done("scan series, documents")
    looked_up = look_up(rng, orders, customers, customer_keys, index, documents, LOOKUPS)
    steps.done("look up")

    checksum = 0
    for result in (sorted(revenue.items()), best, largest, series, document_bytes, looked_up):
        checksum = fold(checksum, result)
    rows = len(customers) + len(orders) + len(log) + len(prices) + len(documents)
    return rows, checksum


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=640, help="how much data to hold (default %(default)s MiB)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Nothing here is cyclic: as data jobs do, leave freeing to the reference counts.
    gc.disable()
    started = time.monotonic()
    rows, checksum = run(options.mib, options.seed)
    seconds = time.monotonic() - started
    print(f"rows {rows}  checksum {checksum:08x}")
    sys.stdout.flush()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  all {seconds:.1f} s, peak resident {peak_mib:.0f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
