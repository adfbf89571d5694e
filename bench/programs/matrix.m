% Matrices that are multiplied, sorted and solved.
rows = 900;
a = mod ((1:rows)' * (1:rows) * 7919, 10007) / 10007;
b = a * a' + rows * eye (rows);
x = b \ a;
list = sort (mod ((1:5e6) * 40503, 1000003));
cells = arrayfun (@(n) sprintf ("%d", n), 1:40000, "UniformOutput", false);
printf ("%.6g %.6g %d %d\n", sum (x(:)), sum (list(1:1000:end)), numel (cells), sum (cellfun (@numel, cells)));
