-- A map of records that grows, changes and is read in order.
module Main (main) where

import qualified Data.IntMap.Strict as Map
import Data.List (foldl')

data Row = Row !Int !String ![Int]

keys, steps :: Int
keys = 400000
steps = 1500000

-- | The next state of a generator of numbers (Park and Miller 1988).
next :: Int -> Int
next state = state * 16807 `mod` 2147483647

change :: (Map.IntMap Row, Int) -> Int -> (Map.IntMap Row, Int)
change (rows, state) step
  | step `mod` 6 == 5 = (Map.delete key rows, state')
  | otherwise = length note `seq` (Map.insert key (Row step note [state', key]) rows, state')
  where
    state' = next state
    key = state' `mod` keys
    note = "note " ++ show key

digest :: Int -> Row -> Int
digest sum' (Row step note words') = (sum' * 31 + step + length note + head words') `mod` 1000000007

main :: IO ()
main = do
  let (rows, _) = foldl' change (Map.empty, 1) [0 .. steps - 1]
  putStrLn (show (Map.size rows) ++ " " ++ show (Map.foldl' digest 0 rows))
