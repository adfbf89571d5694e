// A map from strings to objects that grows, changes and is sorted.
const { createHash } = require("crypto");
const map = new Map();
let state = 1;
for (let step = 0; step < 1000000; step++) {
  state = (Math.imul(state, 1103515245) + 12345) >>> 0;
  const key = "person " + ((state >>> 4) % 400000);
  if (step % 6 === 5) map.delete(key);
  else map.set(key, { step, note: "seen at " + (state % 97), tags: [step % 7, step % 11] });
}
const hash = createHash("sha256");
for (const key of [...map.keys()].sort()) {
  const value = map.get(key);
  hash.update(key + value.step + value.note + value.tags);
}
console.log(map.size, hash.digest("hex"));
