-- Tables of tables that grow, change and are read in order.
local rows, state = {}, 1
for step = 1, 3000000 do
  state = (state * 16807) % 2147483647
  local key = state % 700000 + 1
  if step % 6 == 5 then rows[key] = nil
  else rows[key] = { step, "note " .. key, state % 97 } end
end
local count, digest = 0, 0
for key = 1, 700000 do
  local row = rows[key]
  if row then
    count = count + 1
    digest = (digest * 31 + row[1] + #row[2] + row[3]) % 1000000007
  end
end
print(count, digest)
