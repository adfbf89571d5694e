# A hash of arrays that grows, changes and is sorted.
require "digest"
words = {}
state = 1
1_200_000.times do |step|
  state = (state * 1103515245 + 12345) & 0x7fffffff
  key = "word #{(state >> 4) % 400_000}"
  if step % 6 == 5 then words.delete(key) else words[key] = [step, "note #{state % 9973}" * 3] end
end
digest = Digest::SHA256.new
words.keys.sort.each { |key| digest << key << words[key][0].to_s << words[key][1] }
puts "#{words.size} #{digest.hexdigest}"
