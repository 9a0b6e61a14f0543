"""Rows with versions: the script that puts, deletes and marks hashes, and remembers deletes.

The script first compares all rows with what is stored, and keeps the outcome in memory; so a row that cannot be
compared stops it before it writes. Versions are compared as texts, since Lua's numbers end at 2^53: whole digits by
their count, anything else byte by byte, whatever the server's locale is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal_sink.sinks.chunk import Chunk
from wal_sink_backends.common.newest import Events, NewestWins
from wal_sink_backends.redis.rows import HEAD, LEDGER, Value, VersionOf

APPLY = (
    HEAD
    + """
local function bytes(a, b)
    for i = 1, math.min(#a, #b) do
        local x, y = a:byte(i), b:byte(i)
        if x ~= y then return x < y and -1 or 1 end
    end
    return #a == #b and 0 or (#a < #b and -1 or 1)
end

local function digits(text)
    local sign, whole, rest = text:match('^(%-?)0*(%d*)%.?(%d-)0*$')
    if not whole or not text:find('%d') then return end
    return whole .. rest == '' and '' or sign, whole, rest
end

local function compare(form, a, b)
    if a == b then return 0 end
    if form == 'n' then
        local minus_a, whole_a, rest_a = digits(a)
        local minus_b, whole_b, rest_b = digits(b)
        if not minus_a then return end
        if minus_a ~= minus_b then return minus_a == '-' and -1 or 1 end
        local found = #whole_a == #whole_b and bytes(whole_a .. rest_a, whole_b .. rest_b) or #whole_a - #whole_b
        return minus_a == '-' and -found or found
    end
    if form == 'm' and (#a ~= #b or not a:find('^%d%d%d%d%-%d%d%-%d%d')) then return end
    return bytes(a, b)
end

local deleted, by_batch = KEYS[2], KEYS[3]
local kept, how, flag, forms, p = tonumber(ARGV[11]), ARGV[12], ARGV[13], ARGV[14], 15
local remembers, plain = how == 'delete', how == 'plain'
local names = {unpack(ARGV, p, p + #forms - 1)}
p = p + #forms
wrong = wrong_type(deleted, 'hash')
if wrong then return {'BAD LEDGER', wrong, deleted} end
wrong = wrong_type(by_batch, 'zset')
if wrong then return {'BAD LEDGER', wrong, by_batch} end
local covered = tonumber(redis.call('HGET', deleted, 'covered') or '0')
if remembers and not known and batch < covered then return {'TOO OLD', tostring(covered)} end
local top, newer_by = redis.call('ZREVRANGE', by_batch, 0, 0, 'WITHSCORES'), cjson.encode(names)
local other = remembers and not known and top[1] and (redis.call('HGET', deleted, 'newer_by') or '[]')
if other and other ~= newer_by then return {'OTHER NEWER_BY', other} end

local odd
local function older(stored, new)  -- below 0: the stored version is older; no stored version is the oldest
    if not stored then return -1 end
    for i, name in ipairs(names) do
        if not stored[i] then return -1 end
        local found = compare(forms:sub(i, i), stored[i], new[i])
        if not found then
            odd = odd or {name, stored[i]}
            return 1
        end
        if found ~= 0 then return found end
    end
    return 0
end

local refused, seen, steps, odds = {'WRONGTYPE'}, {}, {}, {'NOT COMPARED'}
for i = 4, known and 3 or #KEYS do
    local key, row = KEYS[i], tostring(i - 4)
    local at = seen[key] or {kind = redis.call('TYPE', key).ok}
    if at.kind ~= 'hash' and at.kind ~= 'none' then
        refused[#refused + 1] = row
        refused[#refused + 1] = at.kind
    elseif not seen[key] then
        at.row = at.kind == 'hash' and redis.call('HMGET', key, unpack(names)) or nil
        local dead = remembers and redis.call('HGET', deleted, '=' .. key)
        at.dead = dead and cjson.decode(dead) or nil
        seen[key] = at
    end
    local verb, new = ARGV[p], {unpack(ARGV, p + 1, p + #forms)}
    p = p + 1 + #forms
    local n = tonumber(ARGV[p])
    local first, last = p + 1, p + n
    p = last + 1
    local gone = tonumber(ARGV[p])
    local by_row, by_dead = older(at.row, new), older(at.dead, new)
    if verb == 'put' and (by_row < 0 or (plain and by_row == 0)) and by_dead < 0 then
        steps[#steps + 1] = {'put', key, first, last, p + 1, p + gone}
        at.row = new
    elseif verb == 'delete' and by_row <= 0 and by_dead < 0 then
        steps[#steps + 1] = {'delete', key, cjson.encode(new)}
        at.row, at.dead = nil, new
    elseif verb == 'delete' and at.row and by_row <= 0 and by_dead == 0 then
        steps[#steps + 1] = {'delete', key, cjson.encode(new)}
        at.row = nil
    elseif verb == 'mark' and not at.row then
        steps[#steps + 1] = {'put', key, first, last, p + 1, p + gone}
        at.row = new
    elseif verb == 'mark' and by_row <= 0 then
        steps[#steps + 1] = {'mark', key, new}
        at.row = new
    end
    if odd then
        for _, text in ipairs({row, odd[1], odd[2]}) do odds[#odds + 1] = text end
        odd = nil
    end
    p = p + gone + 1
end
if #refused > 1 then return refused end
if #odds > 1 then return odds end
redis.call('HSET', ledger, 'term', ARGV[1])
if known then return {'KNOWN'} end

local newest = math.max(batch, tonumber(top[2] or '0'))
for _, step in ipairs(steps) do
    local verb, key = step[1], step[2]
    if verb == 'put' then
        redis.call('HSET', key, unpack(ARGV, step[3], step[4]))
        if step[6] >= step[5] then redis.call('HDEL', key, unpack(ARGV, step[5], step[6])) end
    elseif verb == 'delete' then
        redis.call('HSET', deleted, 'newer_by', newer_by, '=' .. key, step[3])
        redis.call('ZADD', by_batch, newest, key)
        redis.call('DEL', key)
    else
        redis.call('HSET', key, flag, 'true')
        for i, name in ipairs(names) do redis.call('HSET', key, name, step[3][i]) end
    end
end
local through = remembers and newest - kept or -1
local most = 2 * #KEYS + 100
local forgotten = redis.call('ZRANGEBYSCORE', by_batch, '-inf', through, 'WITHSCORES', 'LIMIT', 0, most)
for i = 1, #forgotten, 2 do
    redis.call('HSET', deleted, 'covered', math.max(covered, tonumber(forgotten[i + 1]) + 1))
    redis.call('HDEL', deleted, '=' .. forgotten[i])
    redis.call('ZREM', by_batch, forgotten[i])
end
redis.call('HSET', ledger, 'batch_id', ARGV[2], 'rows', ARGV[3], 'segment_id', segment)
return {'DONE'}
"""
)
"""KEYS: the ledger's, two for the deletes, then a row's each. ARGV: as `SCRIPT` up to 10; batches for which deletes are
remembered; `plain`, `delete` or `mark`; the column that a delete sets, or nothing; a letter for each column of the
version, those columns' names; then for each row `put`, `delete` or `mark`, its version, and what
`SCRIPT` takes. Rows that cannot be compared come back as triples: row, column, stored value.
"""


def keys_of_deletes(chunk: Chunk) -> list[str]:
    """The keys in which a sink remembers deletes: a hash with `newer_by` and versions by key, and the keys by batch."""
    sink = "/".join(chunk.position.slot.split("/")[:2])
    return [f"{LEDGER}{sink}/deleted", f"{LEDGER}{sink}/deleted-by-batch"]


def arguments_of(rule: NewestWins, events: Events) -> list[int | str]:
    """The arguments of `APPLY` before those of its rows."""
    how = "plain" if rule.changes is None else rule.changes.on_delete
    return [rule.deletes_kept, how, rule.mark or "", events.forms, *rule.newer_by]


def verbs_and_versions(rule: NewestWins, events: Events) -> VersionOf:
    """A function that tells what a row does, and its version."""
    delete = b"mark" if rule.mark else b"delete"

    def version_of(row: int, columns: Mapping[str, Sequence[Value]]) -> Sequence[bytes]:
        return [delete if events.deletes[row] else b"put", *(columns[name][row] or b"" for name in rule.newer_by)]

    return version_of
