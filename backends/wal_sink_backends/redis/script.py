"""The script that puts a chunk into Redis.

Scripts run alone, but their writes before an error stay. So everything that can fail is tried first: the term is
written before any row, which shows whether the ledger may be written and whether there is memory (Redis checks that
only before a script's first write), and the type of every key is checked. The later writes cannot fail. On disk and on
replicas a script's writes are one transaction. If keys have the wrong type, nothing is written, and the script returns
their rows: the chunk is sent again without them.

The script repeats the rule of `LedgerEntry.is_known` in Lua: it decides which chunk is known and which is refused.
"""

from __future__ import annotations

LEDGER = "wal_sink:ledger:"

SCRIPT = """
local ledger = KEYS[1]
local term, batch, rows, segment = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local start, kind, maxlen = tonumber(ARGV[5]), ARGV[6], ARGV[7]

local function wrong_type(key, expected)
    local found = redis.call('TYPE', key).ok
    if found ~= expected and found ~= 'none' then return found end
    if found == 'stream' then  -- an XADD that finds no number any more would fail amid the rows
        local about = redis.pcall('XINFO', 'STREAM', key)
        for i = 1, #about - 1, 2 do
            if about[i] == 'last-generated-id' and about[i + 1]:find('^18446744073709551615%-') then
                return 'stream without numbers left'
            end
        end
    end
end

local wrong = wrong_type(ledger, 'hash')
if wrong then return {'BAD LEDGER', wrong} end
local at = redis.call('HMGET', ledger, 'term', 'batch_id', 'rows', 'segment_id')
for i, absent in ipairs({'0', '-1', '0', ''}) do at[i] = at[i] or absent end
local at_term, at_batch, at_rows, at_segment = tonumber(at[1]), tonumber(at[2]), tonumber(at[3]), at[4]
local same = at_batch == batch
local known = at_batch > batch or (same and at_rows >= rows)
local follows = start == 0 and at[2] == ARGV[8] and at[3] == ARGV[9] and at_segment == ARGV[10]
local new = not known and ((same and at_rows == start) or (not same and follows))
if at_term > term or (same and at_segment ~= segment) or not (known or new) then
    return {'REFUSED', at[1], at[2], at[3], at[4]}
end
local refused = {'WRONGTYPE'}
for i = 2, known and 1 or #KEYS do
    if KEYS[i] ~= KEYS[i - 1] then wrong = wrong_type(KEYS[i], kind) end
    if wrong then
        refused[#refused + 1] = tostring(i - 2)
        refused[#refused + 1] = wrong
    end
end
if #refused > 1 then return refused end
redis.call('HSET', ledger, 'term', ARGV[1])
if known then return {'KNOWN'} end

local p = 11
for i = 2, #KEYS do
    local n = tonumber(ARGV[p])
    local last = p + n
    if kind == 'set' then
        redis.call('SADD', KEYS[i], unpack(ARGV, p + 1, last))
    elseif kind == 'hash' then
        redis.call('HSET', KEYS[i], unpack(ARGV, p + 1, last))
    elseif maxlen ~= '0' then
        redis.call('XADD', KEYS[i], 'MAXLEN', '~', maxlen, '*', unpack(ARGV, p + 1, last))
    else
        redis.call('XADD', KEYS[i], '*', unpack(ARGV, p + 1, last))
    end
    p = last + 1
    local gone = tonumber(ARGV[p])
    if gone > 0 then redis.call('HDEL', KEYS[i], unpack(ARGV, p + 1, p + gone)) end
    p = p + gone + 1
end
redis.call('HSET', ledger, 'batch_id', ARGV[2], 'rows', ARGV[3], 'segment_id', segment)
return {'DONE'}
"""
"""KEYS: the ledger's, then a row's each. ARGV: term, batch, rows, segment, start, kind, maxlen; batch, rows and segment
that the slot held when the attempt began (-1, 0 and nothing where it held nothing); then for each row a count, so many
texts to write, a count, and so many fields to remove. Rows of the wrong type come back as pairs: the row's number,
counted from 0, and the type that its key has.
"""
