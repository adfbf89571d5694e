# Columns that are sorted, joined and summed.
state <- 1
n <- 1000000
key <- (seq_len(n) * 7919) %% 100003
value <- sin(seq_len(n)) * 1000
frame <- data.frame(key = key, value = value, note = paste0("note ", key %% 997))
frame <- frame[order(frame$key, frame$value), ]
sums <- tapply(frame$value, frame$note, sum)
joined <- merge(data.frame(key = 0:2000, more = 0:2000 * 2), frame[seq(1, n, 5), ])
text <- paste(head(frame$note, 100000), collapse = "")
cat(nrow(frame), nrow(joined), nchar(text), formatC(sum(sums * seq_along(sums)), digits = 9, format = "g"), "\n")
