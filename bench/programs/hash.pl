# A hash of hashes that grows, changes and is sorted.
use strict;
use warnings;
use Digest::SHA;
my ($state, %rows) = (1);
for my $step (0 .. 1_200_000) {
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    my $key = "row " . (($state >> 4) % 400_000);
    if ($step % 6 == 5) { delete $rows{$key} }
    else { $rows{$key} = { step => $step, note => "x" x ($step % 60) } }
}
my $sha = Digest::SHA->new(256);
$sha->add($_, $rows{$_}{step}, $rows{$_}{note}) for sort keys %rows;
printf "%d %s\n", scalar keys %rows, $sha->hexdigest;
