---------------------------- MODULE LostObjects ----------------------------
(***************************************************************************)
(* A store that loses objects of the WAL, the eldest first, as a bucket's  *)
(* life-cycle rule does.  Runs open one after the other; each looks what   *)
(* is there, registers its sink, claims its terms, stages, delivers and    *)
(* marks.  A run stops for ever by taking no more steps, or goes on after  *)
(* others took over.  An object that is not there is taken for new only    *)
(* where nothing younger exists.                                           *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
    NRuns,      \* Lives of processes, each with a query and a committer; they open one after the other.
    NB,         \* Batches.
    StartFrom,  \* The program's `start_from` of its sink: "none", "next" or "earliest".
    MaxLosses,  \* How often the store loses what is older than something.
    Claimed,    \* How many terms of each role earlier processes claimed.
    AtOnce,     \* Whether a run may open while another one starts.
    Margin,     \* How far a claim jumps where all terms of a role were lost.
    BUG

Max(set) == CHOOSE x \in set : \A y \in set : y <= x
Min(set) == CHOOSE x \in set : \A y \in set : x <= y
Runs == 1 .. NRuns
Batches == 0 .. (NB - 1)
Roles == {"stager", "committer"}

VARIABLES
    made,    \* The objects on the store.
    old,     \* Those of them that the store is about to lose: all that were made before some moment.
    done,    \* How many batches Spark completed.
    R,       \* By run: what it does, and what it knows.
    K,       \* By run and role: the claim and the term.
    losses,
    G        \* Ghosts: what only the laws need.

vars == <<made, old, done, R, K, losses, G>>

Obj(kind, role, b, n) == [kind |-> kind, role |-> role, b |-> b, n |-> n]
WalObj(first) == Obj("wal", "", first, 0)
SinkObj(first) == Obj("sink", "", first, 0)
TermObj(role, n) == Obj("term", role, 0, n)
Manifest(b, n, sink) == Obj("manifest", IF sink THEN "sink" ELSE "", b, n)     \* with the names of the sinks that its run knows
ReleaseObj(b) == Obj("release", "", b, 0)
Marker(b, n) == Obj("marker", "", b, n)

NoRun == [pc |-> "off", wal |-> -1, sink |-> -1, marked |-> -1, evidence |-> FALSE, batches |-> FALSE, b |-> -1, st |-> "off", cm |-> "off"]
NoClaim == [pc |-> "off", n |-> 0, fill |-> {}, held |-> FALSE]

Init ==
    /\ made = IF Claimed = 0 THEN {} ELSE {SinkObj(0)} \cup {TermObj(x, n) : x \in Roles, n \in 1 .. Claimed}
    /\ old = {} /\ done = 0 /\ losses = 0
    /\ R = [r \in Runs |-> NoRun]
    /\ K = [r \in Runs |-> [x \in Roles |-> NoClaim]]
    /\ G = [begin |-> IF Claimed = 0 THEN -1 ELSE 0, sent |-> {}, bad |-> {}]

-----------------------------------------------------------------------------
(* A look at the store *)

Of(kind) == {o \in made : o.kind = kind}
Numbers(role) == {o.n : o \in {x \in Of("term") : x.role = role}}
HasTerm(role, n) == TermObj(role, n) \in made
Newest(kind) == Max({-1} \cup {o.b : o \in Of(kind)})
First(kind) == (CHOOSE o \in Of(kind) : TRUE).b
Create(o) == made' = made \cup {o}
CreateFirst(kind, o) == made' = IF Of(kind) # {} THEN made ELSE made \cup {o}

\* inventory: what is made after wal.json
YoungerThanWal ==
    \/ Of("manifest") # {} \/ Of("release") # {} \/ Of("marker") # {}
    \/ \E x \in Roles : Numbers(x) # {} /\ 1 \notin Numbers(x)
\* what is made after sink.json: terms of its committer, its markers; a release, which only committers make; a manifest
\* of a run that knew the sink
YoungerThanSink ==
    \/ Numbers("committer") # {} \/ Of("marker") # {} \/ Of("release") # {}
    \/ BUG # "manifests_name_no_sinks" /\ \E o \in Of("manifest") : o.role = "sink"

\* The highest term that anything younger than the terms names.
Evidence(role) ==
    Max({0} \cup IF role = "committer" THEN {o.n : o \in {x \in Of("marker") : x.b = Newest("marker")}}
                 ELSE {o.n : o \in {x \in Of("manifest") : x.b = Newest("manifest")}})

\* No start, and no claim, takes as long as objects are kept.
Starts(r) ==
    \/ R[r].pc \in {"look", "look again", "register", "new sink"} \/ "claim" \in {R[r].cm, R[r].st}
    \/ \E x \in Roles : K[r][x].pc \in {"claiming", "claimed"}

\* The objects that are there now will be lost before any that is made later.
Age ==
    /\ losses < MaxLosses /\ old = {} /\ made # {}
    /\ old' = made
    /\ UNCHANGED <<made, done, R, K, losses, G>>

Lose ==
    /\ old # {} /\ made # old /\ ~\E r \in Runs : Starts(r)
    /\ made' = made \ old /\ old' = {}
    /\ losses' = losses + 1
    /\ UNCHANGED <<done, R, K, G>>

-----------------------------------------------------------------------------
(* Opening *)

Ended(pc) == [NoRun EXCEPT !.pc = pc]
Alarm(r) == [R EXCEPT ![r] = Ended("alarm")]
Blame(g) == IF losses = 0 THEN [g EXCEPT !.bad = @ \cup {"alarm"}] ELSE g

\* Roles that an older process may hold.
Before == [x \in Roles |-> [NoClaim EXCEPT !.held = BUG # "new_role_never_held"]]

\* protocol.inventory.take: wal.json, then what is there, then wal.json again before it is an error
Open(r) ==
    /\ R[r].pc = "off"
    /\ r > 1 => R[r - 1].pc # "off" /\ (AtOnce \/ ~Starts(r - 1))
    /\ R' = [R EXCEPT ![r].pc = IF Of("wal") # {} THEN "register" ELSE "look",
                      ![r].wal = IF Of("wal") # {} THEN First("wal") ELSE -1,
                      ![r].batches = Of("wal") # {} /\ Of("manifest") # {}]
    /\ K' = IF made # {} THEN [K EXCEPT ![r] = Before] ELSE K
    /\ UNCHANGED <<made, done, losses, G>>

Look(r) ==
    /\ R[r].pc = "look"
    /\ R' = [R EXCEPT ![r].pc = "look again", ![r].evidence = YoungerThanWal /\ BUG # "wal_taken_for_new"]
    /\ UNCHANGED <<made, done, K, losses, G>>

LookAgain(r) ==
    /\ R[r].pc = "look again"
    /\ IF Of("wal") # {}
       THEN R' = [R EXCEPT ![r].pc = "register", ![r].wal = First("wal"), ![r].batches = Of("manifest") # {}] /\ UNCHANGED G
       ELSE IF R[r].evidence
       THEN R' = Alarm(r) /\ G' = Blame(G)
       ELSE R' = [R EXCEPT ![r].pc = "register"] /\ UNCHANGED G
    /\ UNCHANGED <<made, done, K, losses>>

\* protocol.registration.register
Register(r) ==
    /\ R[r].pc = "register"
    /\ R' = IF Of("sink") # {} THEN [R EXCEPT ![r].pc = "on", ![r].sink = First("sink"), ![r].cm = "claim", ![r].batches = FALSE]
            ELSE [R EXCEPT ![r].pc = "new sink", ![r].evidence = YoungerThanSink /\ BUG # "sink_taken_for_new"]
    /\ K' = IF Of("sink") # {} THEN [K EXCEPT ![r] = Before] ELSE K
    /\ UNCHANGED <<made, done, losses, G>>

NewSink(r) ==
    LET first == IF ~R[r].batches \/ StartFrom = "earliest" THEN 0 ELSE done
        known == IF Of("sink") # {} THEN First("sink") ELSE first
    IN
    /\ R[r].pc = "new sink"
    /\ IF Of("sink") = {} /\ R[r].evidence
       THEN R' = Alarm(r) /\ G' = Blame(G) /\ UNCHANGED made
       ELSE IF Of("sink") = {} /\ R[r].batches /\ StartFrom = "none"
       THEN R' = Alarm(r) /\ UNCHANGED <<made, G>>      \* a new name on a WAL with history: say where it begins
       ELSE /\ CreateFirst("sink", SinkObj(first))
            /\ R' = [R EXCEPT ![r].pc = "on", ![r].sink = known, ![r].cm = "claim", ![r].batches = FALSE, ![r].evidence = FALSE]
            /\ G' = IF G.begin = -1 THEN [G EXCEPT !.begin = first] ELSE G
    /\ K' = IF Of("sink") # {} THEN [K EXCEPT ![r] = Before] ELSE K
    /\ UNCHANGED <<done, losses>>

-----------------------------------------------------------------------------
(* Claiming a term: log.terms.claim *)

Thread(role) == IF role = "stager" THEN "st" ELSE "cm"
Pc(r, role) == IF role = "stager" THEN R[r].st ELSE R[r].cm
At(r, role, pc) == IF role = "stager" THEN [R EXCEPT ![r].st = pc] ELSE [R EXCEPT ![r].cm = pc]
Claims(r, role, c) == K' = [K EXCEPT ![r][role] = c]

From(r, role, least) ==
    LET listed == Numbers(role)
        held == K[r][role].held \/ (role = "stager" /\ Of("wal") # {} /\ BUG # "new_role_never_held")
        jump == IF listed = {} /\ held /\ BUG \notin {"claim_does_not_jump", "claim_by_listing_alone"} THEN Margin ELSE 0
        n == Max(listed \cup {0, least}) + 1 + jump
        missing == (1 .. (n - 1)) \ listed
    IN [K[r][role] EXCEPT !.pc = "claiming", !.n = n,
                          !.fill = IF BUG = "jump_without_filling" THEN {} ELSE missing]

List(r, role) ==
    /\ R[r].pc = "on" /\ Pc(r, role) = "claim" /\ K[r][role].pc = "off"
    /\ Claims(r, role, From(r, role, 0))
    /\ UNCHANGED <<made, done, R, losses, G>>

\* The missing numbers below come first, the lowest first.
Fill(r, role) ==
    LET c == K[r][role]
    IN
    /\ c.pc = "claiming" /\ c.fill # {}
    /\ made' = made \cup {TermObj(role, n) : n \in c.fill}
    /\ Claims(r, role, [c EXCEPT !.fill = {}])
    /\ UNCHANGED <<done, R, losses, G>>

CreateTerm(r, role) ==
    LET c == K[r][role] IN
    /\ c.pc = "claiming" /\ c.fill = {}
    /\ Create(TermObj(role, c.n))
    /\ Claims(r, role, IF HasTerm(role, c.n) THEN [c EXCEPT !.n = @ + 1] ELSE [c EXCEPT !.pc = "claimed"])
    /\ UNCHANGED <<done, R, losses, G>>

\* A holder looks at the next number alone.
Fenced(r, role) == HasTerm(role, K[r][role].n + 1)

\* Others that hold the role and do not know better; but for one that was claimed oftener than `Margin` without a trace.
Others(r, role) ==
    {x \in Runs \ {r} : /\ K[x][role].pc = "held" /\ Pc(x, role) \notin {"off", "dead"} /\ ~Fenced(x, role)
                        /\ K[x][role].n <= Evidence(role) + Margin}

\* The newest marker, or the newest batch's manifests: if they name a term that is not below the claimed one, terms were lost.
Compare(r, role) ==
    LET c == K[r][role]
        seen == Evidence(role)
        ignored == BUG \in {"claim_by_listing_alone", "evidence_not_compared"}
        more == IF BUG = "claim_does_not_jump" THEN 0 ELSE Margin
    IN
    /\ c.pc = "claimed"
    /\ IF seen < c.n \/ ignored
       THEN /\ Claims(r, role, [c EXCEPT !.pc = "held", !.fill = {}])
            /\ R' = [At(r, role, "idle") EXCEPT ![r].marked = IF role = "committer" THEN Newest("marker") ELSE @,
                                                ![r].st = IF role = "committer" THEN "claim" ELSE "idle"]
            /\ G' = IF ~Fenced(r, role) /\ Others(r, role) # {} THEN [G EXCEPT !.bad = @ \cup {"two holders"}] ELSE G
       ELSE IF Fenced(r, role)
       THEN R' = At(r, role, "dead") /\ UNCHANGED <<K, G>>
       ELSE Claims(r, role, From(r, role, seen + more)) /\ UNCHANGED <<R, G>>
    /\ UNCHANGED <<made, done, losses>>

-----------------------------------------------------------------------------
(* Staging and delivering *)

\* protocol.history.History.bind: before wal.json is made, the inventory is taken once more
Bind(r) ==
    LET wal == IF Of("wal") # {} THEN First("wal") ELSE done IN
    /\ R[r].pc = "on" /\ R[r].st = "idle" /\ R[r].wal = -1 /\ done < NB
    /\ IF Of("wal") = {} /\ YoungerThanWal /\ BUG \notin {"wal_taken_for_new", "bound_without_a_look"}
       THEN R' = Alarm(r) /\ G' = Blame(G) /\ UNCHANGED made
       ELSE CreateFirst("wal", WalObj(done)) /\ R' = [R EXCEPT ![r].wal = wal] /\ UNCHANGED G
    /\ UNCHANGED <<done, K, losses>>

StageManifest(r) ==
    /\ R[r].pc = "on" /\ R[r].st = "idle" /\ R[r].wal # -1 /\ done < NB
    /\ Create(Manifest(done, K[r]["stager"].n, R[r].sink # -1))
    /\ R' = [R EXCEPT ![r].st = "commit", ![r].b = done]
    /\ UNCHANGED <<done, K, losses, G>>

\* Another query completed the batch meanwhile: then this one dies.
SparkCommit(r) ==
    /\ R[r].pc = "on" /\ R[r].st = "commit"
    /\ done' = IF done = R[r].b THEN done + 1 ELSE done
    /\ R' = [R EXCEPT ![r].st = IF done = R[r].b THEN "idle" ELSE "dead", ![r].b = -1]
    /\ UNCHANGED <<made, K, losses, G>>

\* A committer that does not know the WAL yet looks for it as it was looked for when it was opened.
FindWal(r) ==
    /\ R[r].pc = "on" /\ R[r].cm = "idle" /\ R[r].wal = -1
    /\ \/ Of("wal") # {} /\ R' = [R EXCEPT ![r].wal = First("wal")] /\ UNCHANGED G
       \/ Of("wal") = {} /\ YoungerThanWal /\ BUG # "wal_taken_for_new" /\ R' = Alarm(r) /\ G' = Blame(G)
    /\ UNCHANGED <<made, done, K, losses>>

Due(r) == Max({R[r].marked + 1, R[r].wal, R[r].sink})
Undelivered(upto) == {b \in Batches : b >= G.begin /\ b < upto /\ b \notin G.sent}

\* The gate, the term, the manifest, the release, the rows.
Deliver(r) ==
    LET b == Due(r)
        bad == IF Undelivered(b) # {} THEN {"skipped"} ELSE {}
    IN
    /\ R[r].pc = "on" /\ R[r].cm = "idle" /\ R[r].wal # -1 /\ b < done
    /\ IF Fenced(r, "committer") THEN R' = [R EXCEPT ![r].cm = "dead"] /\ UNCHANGED <<made, G>>
       ELSE IF Newest("marker") >= b            \* an older process marked it meanwhile
       THEN R' = [R EXCEPT ![r].marked = Newest("marker")] /\ UNCHANGED <<made, G>>
       ELSE IF ~\E o \in Of("manifest") : o.b = b
       THEN R' = Alarm(r) /\ G' = Blame(G) /\ UNCHANGED made          \* HistoryError
       ELSE /\ Create(ReleaseObj(b))
            /\ R' = [R EXCEPT ![r].cm = "mark"]
            /\ G' = [G EXCEPT !.sent = @ \cup {b}, !.bad = @ \cup bad]
    /\ UNCHANGED <<done, K, losses>>

CreateMarker(r) ==
    LET b == Due(r) IN
    /\ R[r].pc = "on" /\ R[r].cm = "mark"
    /\ made' = IF \E o \in Of("marker") : o.b = b THEN made ELSE made \cup {Marker(b, K[r]["committer"].n)}
    /\ R' = [R EXCEPT ![r].cm = "idle", ![r].marked = b]
    /\ UNCHANGED <<done, K, losses, G>>

\* The process ends, and says that all is delivered.
Close(r) ==
    /\ R[r].pc = "on" /\ R[r].cm = "idle" /\ ~Fenced(r, "committer")
    /\ IF R[r].wal = -1 THEN Of("wal") = {} /\ (~YoungerThanWal \/ BUG = "wal_taken_for_new") ELSE Due(r) >= done
    /\ R' = [R EXCEPT ![r] = Ended("closed")]
    /\ G' = IF Undelivered(done) # {} THEN [G EXCEPT !.bad = @ \cup {"skipped"}] ELSE G
    /\ UNCHANGED <<made, done, K, losses>>

-----------------------------------------------------------------------------

RunStep(r) ==
    /\ UNCHANGED old
    /\ \/ Open(r) \/ Look(r) \/ LookAgain(r) \/ Register(r) \/ NewSink(r)
       \/ Bind(r) \/ StageManifest(r) \/ SparkCommit(r) \/ FindWal(r) \/ Deliver(r) \/ CreateMarker(r) \/ Close(r)
       \/ \E role \in Roles : List(r, role) \/ Fill(r, role) \/ CreateTerm(r, role) \/ Compare(r, role)

Next == Age \/ Lose \/ \E r \in Runs : RunStep(r)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* Laws *)

\* No completed batch is passed over without an error: not by a later one, and not by an end that says all is well.
NothingSkipped == "skipped" \notin G.bad

\* Once a term is claimed, every earlier holder of the role finds itself fenced, unless more was lost meanwhile.
OneHolder == "two holders" \notin G.bad

\* Delivery stops only where something was lost.
NoFalseAlarm == "alarm" \notin G.bad
=============================================================================
