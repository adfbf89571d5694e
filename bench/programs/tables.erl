%% A table and a heap that grow, change and are read in order.
-module(tables).
-export([main/0]).

main() ->
    Table = ets:new(rows, [ordered_set]),
    fill(Table, 1, 0),
    Rows = ets:tab2list(Table),
    Digest = lists:foldl(fun({Key, Row}, Sum) -> (Sum * 31 + erlang:phash2({Key, Row})) rem 1000000007 end, 0, Rows),
    io:format("~p ~p~n", [length(Rows), Digest]),
    halt().

fill(_, _, 900000) -> ok;
fill(Table, State, Step) ->
    Next = State * 16807 rem 2147483647,
    Key = Next rem 300000,
    case Step rem 6 of
        5 -> ets:delete(Table, Key);
        _ -> ets:insert(Table, {Key, {Step, "note " ++ integer_to_list(Key), Next}})
    end,
    fill(Table, Next, Step + 1).
