------------------------------- MODULE Lake -------------------------------
(***************************************************************************)
(* A commit sink: each commit has the rows of one batch, or of a group of  *)
(* consecutive ones, and the sink's position.  Processes deliver one after *)
(* the other.  Each may stop for ever between two actions, or go on after  *)
(* others took over.  A request whose answer is lost may reach the table   *)
(* at any later time.  Somebody else commits, brings older rows back and   *)
(* leaves the position, or brings an older copy of both back.              *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    NRuns,        \* Lives of processes: a committer or a catch-up.
    NB,           \* Batches.  All are complete.
    Longest,      \* The most batches in one commit.
    MaxFails,     \* How many requests have no answer.
    MaxOthers,    \* How many commits somebody else makes.
    MaxRollbacks, \* How often the rows go back and the position stays.
    MaxCopies,    \* How often rows and position go back.
    NewVersion,   \* Whether a rollback makes a version, as in Delta.  Otherwise an older one is the newest again, as in Iceberg.
    BUG

Runs == 1 .. NRuns
Batches == 0 .. (NB - 1)
Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

VARIABLES
    V,      \* All versions that the table ever had.  The place of a version in this sequence is its id.
    T,      \* The table: the id of its newest version, how many it had, the position, the id of the commit that stored it.
    past,   \* The table at every moment, if a copy may come back.
    marked, \* The newest marker.
    group,  \* By first batch: the last one of its group; -1 before the record of the group is created.
    late,   \* Requests without an answer.
    R,      \* By run: what it does, and what it knows.
    count,  \* How often what happened.
    bad     \* Ghost: the laws about one action that were broken.

vars == <<V, T, past, marked, group, late, R, count, bad>>

NoPos == [lo |-> -1, hi |-> -1]     \* The position is the last batch of a commit.  The first one stands for the digest.
NoRun == [pc |-> "off", repairs |-> FALSE, lo |-> 0, hi |-> -1, pos |-> NoPos, at |-> 0, number |-> 0]

Init ==
    /\ V = <<[rows |-> [b \in Batches |-> 0], pos |-> NoPos, at |-> 0]>>
    /\ T = [head |-> 1, number |-> 1, pos |-> NoPos, at |-> 0]
    /\ past = {} /\ marked = -1 /\ late = {} /\ bad = {}
    /\ group = [b \in Batches |-> -1]
    /\ R = [r \in Runs |-> NoRun]
    /\ count = [fails |-> 0, others |-> 0, rollbacks |-> 0, copies |-> 0]

\* A version has `at` and `pos` of the newest commit of this sink among its ancestors: its id, and its batches.
Newest == V[T.head]
Shown == Newest.at = T.at             \* CommitPosition.is_shown
Held == Newest.pos.hi               \* CommitPosition.held_through
Superseded(r) == \E x \in Runs : x > r /\ R[x].pc # "off"
To(r, pc) == R' = [R EXCEPT ![r].pc = pc]
Note == past' = IF MaxCopies > 0 THEN past \cup {T} ELSE past

-----------------------------------------------------------------------------
(* Others, and the table *)

\* Somebody else commits: the version is another one, the position is the same.
Other ==
    /\ count.others < MaxOthers
    /\ V' = Append(V, Newest)
    /\ T' = [T EXCEPT !.head = Len(V) + 1, !.number = @ + 1]
    /\ count' = [count EXCEPT !.others = @ + 1]
    /\ Note
    /\ UNCHANGED <<marked, group, late, R, bad>>

\* RESTORE, rollback: the rows of any version, the present position
Rollback ==
    /\ count.rollbacks < MaxRollbacks
    /\ \E v \in 1 .. Len(V) :
        /\ v # T.head
        /\ IF NewVersion THEN V' = Append(V, V[v]) /\ T' = [T EXCEPT !.head = Len(V) + 1, !.number = @ + 1]
           ELSE T' = [T EXCEPT !.head = v] /\ UNCHANGED V
    /\ count' = [count EXCEPT !.rollbacks = @ + 1]
    /\ Note
    /\ UNCHANGED <<marked, group, late, R, bad>>

\* A backup: rows and position of an earlier moment
Copy ==
    /\ count.copies < MaxCopies
    /\ T' \in past
    /\ count' = [count EXCEPT !.copies = @ + 1]
    /\ UNCHANGED <<V, past, marked, group, late, R, bad>>

-----------------------------------------------------------------------------
(* A commit, which is one step of the table *)

Asserted(q) ==
    CASE BUG = "commit_asserts_nothing" -> TRUE
      [] BUG = "commit_asserts_the_position" -> T.pos = q.pos
      [] BUG = "version_is_a_number" -> T.number = q.number
      [] OTHER -> T.head = q.at

Of(q) == [lo |-> q.lo, hi |-> q.hi]
Rows(q) == [b \in Batches |-> Newest.rows[b] + IF b \in q.lo .. q.hi THEN 1 ELSE 0]

Apply(q) ==
    LET id == Len(V) + 1
        whole == BUG # "position_in_a_second_commit"
    IN /\ V' = Append(V, [rows |-> Rows(q), pos |-> IF whole THEN Of(q) ELSE Newest.pos, at |-> IF whole THEN id ELSE Newest.at])
       /\ T' = [T EXCEPT !.head = id, !.number = @ + 1,
                         !.pos = IF whole THEN Of(q) ELSE @, !.at = IF whole THEN id ELSE @]
       /\ bad' = IF q.lo = Held + 1 THEN bad ELSE bad \cup {"order"}
       /\ Note

\* A request that was on its way while its process stopped, or went on
Arrive ==
    \E q \in late :
        /\ late' = late \ {q}
        /\ IF Asserted(q) THEN Apply(q) ELSE UNCHANGED <<V, T, past, bad>>
        /\ UNCHANGED <<marked, group, R, count>>

-----------------------------------------------------------------------------
(* A process *)

\* protocol.run.Run.open: the term is claimed, then the newest marker is read.
Open(r) ==
    /\ R[r].pc = "off" /\ (r > 1 => R[r - 1].pc # "off")
    /\ \E repairs \in {FALSE, MaxRollbacks + MaxCopies > 0} :
        R' = [R EXCEPT ![r] = [NoRun EXCEPT !.pc = IF repairs THEN "missing" ELSE "group", !.repairs = repairs, !.lo = marked + 1]]
    /\ UNCHANGED <<V, T, past, marked, group, late, count, bad>>

\* The record of a group is created if it is absent, before the first file of the group.
FindGroup(r) ==
    LET lo == R[r].lo
        known == group[lo] >= 0 /\ BUG # "group_bounds_not_kept"
    IN /\ R[r].pc = "group" /\ lo < NB
       /\ \E hi \in IF known THEN {group[lo]} ELSE lo .. Min(lo + Longest, NB) - 1 :
            /\ R' = [R EXCEPT ![r].pc = "look", ![r].hi = hi]
            /\ group' = [group EXCEPT ![lo] = hi]
       /\ UNCHANGED <<V, T, past, marked, late, count, bad>>

Alarm(r) ==
    /\ To(r, "alarm")
    /\ bad' = IF Superseded(r) \/ \E b \in 0 .. marked : Newest.rows[b] = 0 THEN bad ELSE bad \cup {"alarm"}

\* The term is read after the position.  Then the commit is made, at any later time.
Sends(r, lo, hi) ==
    /\ R' = [R EXCEPT ![r] = [@ EXCEPT !.pc = IF Superseded(r) /\ BUG # "term_not_read_before_the_commit" THEN "fenced"
                                             ELSE IF BUG = "another_version_asserted" THEN "read the version" ELSE "send",
                                       !.lo = lo, !.hi = hi, !.pos = T.pos, !.at = T.head, !.number = T.number]]
    /\ UNCHANGED bad

\* protocol.positions.commit_position and is_committed.  The sink reads the position and the version in one look.  A
\* position that is not shown counts as the newest commit that is.
Look(r) ==
    LET lo == R[r].lo
        hi == R[r].hi
        found == IF BUG = "rollback_not_looked_for" THEN T.pos ELSE Newest.pos
        at == found.hi
    IN /\ R[r].pc = "look"
       /\ IF \/ at < lo - 1 /\ BUG # "marker_not_compared"
             \/ ~Shown /\ BUG = "not_shown_is_refused"
             \/ at > hi
             \/ at = hi /\ found # Of(R[r])
          THEN Alarm(r)
          ELSE IF at < hi THEN Sends(r, lo, hi) ELSE To(r, "mark") /\ UNCHANGED bad
       /\ marked' = IF BUG = "marked_before_the_commit" THEN Max(marked, hi) ELSE marked
       /\ UNCHANGED <<V, T, past, group, late, count>>

\* Catch-up: what lies above held_through is sent again, batch by batch, up to the newest marker.
Missing(r) ==
    LET held == CASE BUG = "catch_up_above_the_position" -> T.pos.hi
                  [] BUG = "catch_up_of_everything" /\ R[r].hi < 0 -> -1
                  [] OTHER -> Held
        through == IF BUG = "catch_up_beyond_the_marker" THEN Max(marked, T.pos.hi) ELSE marked
    IN /\ R[r].pc = "missing"
       /\ IF held < through THEN Sends(r, held + 1, held + 1)
          ELSE To(r, "ended") /\ bad' = IF \E b \in 0 .. marked : Newest.rows[b] = 0 THEN bad \cup {"catch-up"} ELSE bad
       /\ UNCHANGED <<V, T, past, marked, group, late, count>>

ReadVersion(r) ==
    /\ R[r].pc = "read the version"
    /\ R' = [R EXCEPT ![r].pc = "send", ![r].at = T.head]
    /\ UNCHANGED <<V, T, past, marked, group, late, count, bad>>

\* sinks.base.CommitSink.commit.  After a refusal, and after a lost answer, the core looks again.
Send(r) ==
    LET run == R[r]
        q == [lo |-> run.lo, hi |-> run.hi, pos |-> run.pos, at |-> run.at, number |-> run.number]
        again == IF run.repairs THEN "missing" ELSE "look"
    IN /\ run.pc = "send"
       /\ \/ /\ Asserted(q)
             /\ Apply(q)
             /\ To(r, IF BUG = "position_in_a_second_commit" THEN "store the position" ELSE IF run.repairs THEN "missing" ELSE "mark")
             /\ UNCHANGED <<late, count>>
          \/ /\ ~Asserted(q)
             /\ To(r, IF BUG = "refusal_taken_for_a_repeat" THEN "mark" ELSE again)
             /\ UNCHANGED <<V, T, past, late, count, bad>>
          \/ /\ count.fails < MaxFails
             /\ late' = late \cup {q}
             /\ count' = [count EXCEPT !.fails = @ + 1]
             /\ To(r, IF BUG = "sent_again_without_a_look" THEN "read the version" ELSE again)
             /\ UNCHANGED <<V, T, past, bad>>
       /\ UNCHANGED <<marked, group>>

StorePosition(r) ==
    /\ R[r].pc = "store the position"
    /\ V' = Append(V, [Newest EXCEPT !.pos = Of(R[r]), !.at = Len(V) + 1])
    /\ T' = [T EXCEPT !.head = Len(V) + 1, !.number = @ + 1, !.pos = Of(R[r]), !.at = Len(V) + 1]
    /\ To(r, IF R[r].repairs THEN "missing" ELSE "mark") /\ Note
    /\ UNCHANGED <<marked, group, late, count, bad>>

CreateMarker(r) ==
    /\ R[r].pc = "mark"
    /\ marked' = Max(marked, R[r].hi)
    /\ R' = [R EXCEPT ![r].pc = "group", ![r].lo = R[r].hi + 1]
    /\ UNCHANGED <<V, T, past, group, late, count, bad>>

Step(r) ==
    \/ Open(r) \/ FindGroup(r) \/ Look(r) \/ Missing(r) \/ ReadVersion(r) \/ Send(r) \/ StorePosition(r)
    \/ CreateMarker(r)

Next == Other \/ Rollback \/ Copy \/ Arrive \/ \E r \in Runs : Step(r)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* The laws *)

NothingTwice == \A b \in Batches : Newest.rows[b] <= 1

\* Unless the table lost rows, it has every marked one.
MarkedIsThere == count.rollbacks + count.copies = 0 => \A b \in 0 .. marked : Newest.rows[b] = 1

\* A look tells the truth: where it finds no loss, no marked row is missing.
LossesAreSeen == Held >= marked => \A b \in 0 .. marked : Newest.rows[b] = 1

\* A commit, however late, adds the batches that follow those which the table shows.  Another one is refused.
LateIsRefused == "order" \notin bad

\* Where a catch-up ends, no marked row is missing.
CatchUpBringsAll == "catch-up" \notin bad

\* The newest process stops only if marked rows are missing.
NoFalseAlarm == "alarm" \notin bad
=============================================================================
