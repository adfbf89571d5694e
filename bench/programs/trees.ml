(* A balanced map that grows and changes: every step leaves garbage. *)
module Rows = Map.Make (Int)

let () =
  let rows = ref Rows.empty and state = ref 1 in
  for step = 0 to 1_200_000 do
    state := !state * 16807 mod 2147483647;
    let key = !state mod 500_000 in
    rows := if step mod 6 = 5 then Rows.remove key !rows else Rows.add key (step, Printf.sprintf "note %d" key) !rows
  done;
  let digest = Rows.fold (fun key (step, note) sum -> ((sum * 31) + key + step + String.length note) mod 1000000007) !rows 0 in
  Printf.printf "%d %d\n" (Rows.cardinal !rows) digest
