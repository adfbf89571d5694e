# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_pagetide_global_optspecs
    string join \n h/help V/version
end

function __fish_pagetide_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_pagetide_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_pagetide_using_subcommand
    set -l cmd (__fish_pagetide_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c pagetide -n "__fish_pagetide_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_needs_command" -s V -l version -d 'Print version'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "run" -d 'Run a program in less memory than it needs'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "ps" -d 'Show the runs of this machine'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "top" -d 'Watch a run on a terminal'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "stat" -d 'Show how a run fares'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "dump" -d 'Show what a run does and waits for, also one that hangs'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "set" -d 'Show or change the cap of a run, and how its pool works, while it goes on'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "swapoff" -d 'Take the swap file of a run out of use'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "swapon" -d 'Use the swap file of a run again'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "report" -d 'Make a page that shows how a run went'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "replay" -d 'Replay a trace: what would have happened in other memory, or by other rules'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "jupyter" -d 'Run the notebooks of Jupyter under Pagetide'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "remote" -d 'Look after what runs have on a remote server'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "doctor" -d 'Say what this machine and this user can do, and what would mend the rest'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "setup" -d 'Give users of this machine permission for userfaultfd, once'
complete -c pagetide -n "__fish_pagetide_needs_command" -f -a "broker" -d 'Hand /dev/userfaultfd to members of a group'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -s m -l memory -d 'Cap on the memory of all processes of the run [default: 80%]' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l stats -d 'Write statistics to FILE as JSON' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l report -d 'Make a page of the run at its end, FILE as HTML' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l stats-interval -d 'Write the statistics every TIME' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l max-stall -d 'End the run when it did little but wait for its pages for TIME' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l swap-dir -d 'Directory of the swap file [default: $TMPDIR, or /var/tmp]' -r -f -a "(__fish_complete_directories)"
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l swap-size -d 'What the swap file may grow to [default: half of what is free there; in a container at most 4 times the cap]' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l remote -d 'Swap to a Valkey or Redis server: redis://HOST:PORT, or rediss:// for TLS' -r -f
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l remote-size -d 'What the run may have on the remote server [default: 4 times the cap]' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l remote-timeout -d 'Wait for an answer of the remote server for TIME at most' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l remote-ttl -d 'Have the remote server forget what nobody renews for TIME' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l remote-password-file -d 'Read the password of the remote server from FILE' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l trace -d 'Write down what happens to FILE, for `pagetide replay`' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l max-pool-percent -d 'Share of the cap that compressed pages may take at most, 1 to 90' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l shrinker -d 'What of the pool is written back to the swap file under pressure' -r -f -a "second-chance\t'What is stored is passed over once, as in Linux 6.12; what has come back before, more often'
decay\t'As many entries are spared as were stored and read of late, as in Linux 6.8'
none\t'Nothing before the pool is nearly full'"
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l reclaim -d 'What decides which memory leaves' -r -f -a "second-chance\t'What comes back from probation stays longer'
fifo\t'What came first leaves first'"
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l readahead -d 'Which neighbours of a page come in with it' -r -f -a "object\t'Neighbours by address, as far as scans show'
cluster\t'The aligned block around the page'
none\t'From the swap file the page alone'"
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l page-cluster -d 'Read at most 2^N pages from the swap file at once, 0 to 9' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l compressor -d 'How pages are compressed' -r -f -a "lzpage\t'Made for pages: nearly as fast as `lz4`, and smaller'
lz4\t'Fastest'
zstd\t'Smaller; `zstd:LEVEL` takes level -7 (fastest) to 19 (smallest) in place of 1'
none\t'Pages are kept as they are'"
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l recompressor -d 'How pages are compressed that the compressor refuses, while the pool is small or they can go nowhere else' -r -f -a "lzpage\t'Made for pages: nearly as fast as `lz4`, and smaller'
lz4\t'Fastest'
zstd\t'Smaller; `zstd:LEVEL` takes level -7 (fastest) to 19 (smallest) in place of 1'
none\t'Not at all'"
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l max-compression-ratio -d 'Keep pages that compress to more than N percent of themselves out of the pool' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l accept-threshold-percent -d 'Have a pool that reached its limit take pages again below N percent of it' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l zpool -d 'Allocator of the pool\'s memory' -r -f -a "zsmalloc\t'Size classes, with compaction'
zbud\t'Two pages in one'"
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l strict -d 'End the run when it passes its cap and cannot give that back'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -s q -l quiet -d 'Say nothing but errors and warnings'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -s v -l verbose -d 'Tell the setup too: cap, pool, swap file, library'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l no-disk -d 'Swap into compressed memory only'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l no-encrypt -d 'Write pages to the swap file as they are'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l fixed-share -d 'Let the pool take its share whatever misses cost'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l no-load-control -d 'Have all processes run at once, however little memory there is for each'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -l no-pool -d 'Store no pages in the compressed pool'
complete -c pagetide -n "__fish_pagetide_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand ps" -l json -d 'Print JSON: an array with an object a run'
complete -c pagetide -n "__fish_pagetide_using_subcommand ps" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand top" -l interval -d 'Look every TIME' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand stat" -l watch -d 'Repeat every TIME until the run ends' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand stat" -l json -d 'Print JSON: the object of `run --stats`, with free_bytes and process_list'
complete -c pagetide -n "__fish_pagetide_using_subcommand stat" -l prometheus -d 'Print Prometheus text'
complete -c pagetide -n "__fish_pagetide_using_subcommand stat" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand dump" -l page -d 'Tell all that is known of the page at ADDR (hexadecimal)' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand dump" -l json -d 'Print JSON'
complete -c pagetide -n "__fish_pagetide_using_subcommand dump" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand set" -l pid -d 'Launcher of the run, if there are several' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand swapoff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand swapon" -s h -l help -d 'Print help'
complete -c pagetide -n "__fish_pagetide_using_subcommand report" -s o -l output -d 'Write the page to FILE.html; `-` is standard output [default: beside the statistics, as .html]' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -s m -l memory -d 'The memory [default: as recorded; 50% for a text]' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l max-pool-percent -d 'Share of the cap that compressed pages may take at most, 1 to 90' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l shrinker -d 'What of the pool is written back to the swap file under pressure' -r -f -a "second-chance\t'What is stored is passed over once, as in Linux 6.12; what has come back before, more often'
decay\t'As many entries are spared as were stored and read of late, as in Linux 6.8'
none\t'Nothing before the pool is nearly full'"
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l reclaim -d 'What decides which memory leaves' -r -f -a "second-chance\t'What comes back from probation stays longer'
fifo\t'What came first leaves first'"
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l readahead -d 'Which neighbours of a page come in with it' -r -f -a "object\t'Neighbours by address, as far as scans show'
cluster\t'The aligned block around the page'
none\t'From the swap file the page alone'"
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l page-cluster -d 'Read at most 2^N pages from the swap file at once, 0 to 9' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l page-bytes -d 'Bytes that a page compresses to of which the trace says nothing' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l device-us -d 'Microseconds that a read from the device takes' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l device-page-us -d 'Microseconds for each further page of a read' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l plot -d 'Draw misses against memory, with the fewest that are possible, to FILE as SVG' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l fixed-share -d 'Let the pool take its share whatever misses cost'
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l no-disk -d 'Do without a device'
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -l json -d 'Print all counters, as JSON'
complete -c pagetide -n "__fish_pagetide_using_subcommand replay" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand jupyter" -s m -l memory -d 'Cap on the memory of each notebook: of its kernel and of what that starts' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand jupyter" -l python -d 'The Python that runs the notebooks; it needs the package ipykernel' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand jupyter" -l name -d 'Name of the kernel\'s folder' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand jupyter" -l prefix -d 'Put the kernel below DIR/share/jupyter, for all users of it [default: where Jupyter keeps the caller\'s]' -r -f -a "(__fish_complete_directories)"
complete -c pagetide -n "__fish_pagetide_using_subcommand jupyter" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand remote" -l remote-password-file -d 'Read the password from FILE' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand remote" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand doctor" -l swap-dir -d 'Where a swap file would lie [default: $TMPDIR, or /var/tmp]' -r -f -a "(__fish_complete_directories)"
complete -c pagetide -n "__fish_pagetide_using_subcommand doctor" -l remote -d 'A Valkey or Redis server, or seeds of a cluster, that pages would go to' -r -f
complete -c pagetide -n "__fish_pagetide_using_subcommand doctor" -l remote-password-file -d 'Read the password of the remote server from FILE' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand doctor" -l json -d 'Print JSON'
complete -c pagetide -n "__fish_pagetide_using_subcommand doctor" -l fix -d 'Mend what a command can mend, after asking'
complete -c pagetide -n "__fish_pagetide_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand setup" -l user -d 'A user who is to have permission; may be repeated [default: who called sudo]' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand setup" -l undo -d 'Remove what setup has made'
complete -c pagetide -n "__fish_pagetide_using_subcommand setup" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pagetide -n "__fish_pagetide_using_subcommand broker" -l socket -d 'Where to listen [default: $PAGETIDE_BROKER, or /run/pagetide/broker.socket]' -r -F
complete -c pagetide -n "__fish_pagetide_using_subcommand broker" -l group -d 'The group whose members get the device' -r
complete -c pagetide -n "__fish_pagetide_using_subcommand broker" -l anyone -d 'Give the device to whoever reaches the socket'
complete -c pagetide -n "__fish_pagetide_using_subcommand broker" -s h -l help -d 'Print help (see more with \'--help\')'
