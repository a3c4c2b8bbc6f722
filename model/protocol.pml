/*
 * The protocol of one FencedJob, for spin: every order of its steps, within small bounds. `make model`; docs/model.md.
 *
 * Does NOT know time: what waits for a duration may happen at any moment here, so nothing that is shown rests on a clock.
 * Does NOT know SQL: the steps of the raise are those of fence/migrations, tried on real servers in fence/*.pg.test.ts.
 *
 * A version of an object is a bit: whoever reads it has the present one, until anybody writes. `#ifdef` are the mutants
 * of model/mutants.ts: one safety line less, which spin must refute.
 */

#ifdef LAWLESS
#define ISSUABLE PODS
#else
#define ISSUABLE (PODS + 1)        /* numbers; a database may refuse one, and the next is above it */
#endif
#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)
#define WITHOUT(set, i) ((set) & (255 - BIT(i)))

/* The invariants, as names that spin prints. Hidden: no part of the state. */
hidden byte INV_1_the_fence_only_grows;
hidden byte INV_2_one_holder_per_generation;
hidden byte INV_3_no_stale_commit;
hidden byte INV_4_raise_before_read;
hidden byte INV_6_match_to_touch;
hidden byte INV_7_one_pod_one_generation;
hidden byte INV_8_never_reissued;
hidden byte INV_9_an_old_grant_replaces_nobody;
hidden byte INV_9_only_the_owner_in_force_completes;
#define HOLDS(name, condition) name = (condition); assert(name)

/* ---- etcd: FencedJob.status and the Lease ---- */

byte statusGeneration, statusOwner;
byte granted;                      /* pods that are no candidates any more */
bit complete;

bit leaseThere;
byte leaseHolder, leaseGeneration; /* holder 0: given back */
byte leaseFloor;                   /* of a refused raise, told with a renewal */
byte leaseFresh;                   /* controllers whose copy is the present one */

/* ---- the database ---- */

byte rowGeneration, rowHolder, rowNonce, rowHistory;
byte claims;                       /* pods that have raised */
byte openGate;
byte history = 1;
byte raiser;                       /* the pod whose raise has the row, and waits at the gate: nobody enters meanwhile */
byte inside;                       /* pods in a transaction that has entered */

/* ---- pods ---- */

byte nonce[PODS + 1];
byte requested[PODS + 1], requestNonce[PODS + 1];   /* a raise on its way */
mtype = { nothing, raised, refused, broken };
mtype answer[PODS + 1] = nothing;
byte answered[PODS + 1];           /* the history, or the floor */
byte served[PODS + 1], servedHistory[PODS + 1];     /* what the application works under */
byte worked, succeeded;            /* pods that have committed; in phase Succeeded */
byte over;                         /* pods whose ownership has ended for good */

/* ---- what the invariants speak of ---- */

byte latest;                       /* raised last, in the present history */
byte raisedHere, raisedEver;       /* pods, in the present history and in all */
byte raiserOf[ISSUABLE + 1];
byte reservedFor[ISSUABLE + 1];

/* ---- what may go wrong, how often ---- */

byte restarts = RESTARTS;          /* of sidecars, in place */
byte losses = LOSSES;              /* of answers of the database, and of connections to it */
byte restores = RESTORES;          /* of the database */
byte deletions = DELETIONS;        /* of the Lease */

/*
 * Reads Lease and status, reserves in the status, grants in the Lease (INV-8). May stop between any two steps, and begin
 * anew. What is read, and written back on the version that was read, is one step.
 */
proctype Controller(byte me)
{
	bit seenThere;
	byte generation, pod;
	byte owner, gone;
look:
	atomic {
		!complete;
		leaseFresh = leaseFresh | BIT(me); seenThere = leaseThere;
		owner = statusOwner; gone = granted; generation = statusGeneration;
#ifdef RESERVED_BLINDLY
	};
	atomic {
#endif
		if
#ifdef ANY_POD_COMPLETES
		:: owner && succeeded -> goto finish
#else
		:: owner && HAS(succeeded, owner) -> goto finish
#endif
		/* Reserved, and the Lease does not say so yet. */
		:: owner && !(leaseHolder == owner && leaseGeneration == generation) -> pod = owner; goto reserved
#ifdef CALM
#ifdef NEVER_REPLACED
		:: owner == 0 && gone < BIT(PODS + 1) - 2 -> skip
#else
		:: (owner == 0 || HAS(over, owner)) && gone < BIT(PODS + 1) - 2 -> skip
#endif
#else
		/* At any time: it has run out, its pod has ended, it was given back, its raise was refused. */
		:: gone < BIT(PODS + 1) - 2 -> skip
#endif
#ifdef POD_GRANTED_AGAIN
		:: owner -> pod = owner
#endif
		:: else -> goto forget
		fi;
		/* The next candidate, and the next number: above what a database has refused. */
		if :: pod == 0 -> pod = 1; do :: HAS(gone, pod) -> pod++ :: else -> break od :: else fi;
		generation = (leaseHolder == owner && leaseFloor > generation -> leaseFloor : generation) + 1;
#ifdef NOT_RESERVED
		generation = leaseGeneration + 1;
#endif
		if :: generation > ISSUABLE -> goto forget :: else fi;
#ifndef NOT_RESERVED
		HOLDS(INV_2_one_holder_per_generation, reservedFor[generation] == 0);
		HOLDS(INV_7_one_pod_one_generation, !HAS(granted, pod));
		granted = gone | BIT(pod); statusGeneration = generation; statusOwner = pod;
		reservedFor[generation] = pod;
#endif
reserved:
		owner = 0; gone = 0
	};
	/* Whoever granted a later generation wrote it in status before he wrote the Lease: seen now, or our write conflicts. */
	atomic {
#ifndef NOT_RESERVED
		if :: statusOwner != pod || statusGeneration != generation -> goto forget :: else fi
#else
		skip
#endif
	};
	atomic {
		if
#ifdef GRANTED_BLINDLY
		:: true ->
#else
		:: seenThere == leaseThere && (!seenThere || HAS(leaseFresh, me)) ->
#endif
			HOLDS(INV_8_never_reissued, reservedFor[generation] == pod);
			HOLDS(INV_9_an_old_grant_replaces_nobody, generation >= leaseGeneration);
			leaseThere = 1; leaseHolder = pod; leaseGeneration = generation; leaseFloor = 0; leaseFresh = 0
		:: else
		fi;
		goto forget;
finish:
		HOLDS(INV_9_only_the_owner_in_force_completes, HAS(succeeded, statusOwner));
		complete = 1;
forget:
		leaseFresh = WITHOUT(leaseFresh, me);
		seenThere = 0; generation = 0; pod = 0; owner = 0; gone = 0;
		goto look
	}
}

#ifdef LAWLESS
/* The Lease says anything at any time: edited, restored with its etcd, of two clusters, of a controller that has gone mad. */
#define OURS(p, g) 0
#define MARK(set, p) skip
#else
#define OURS(p, g) (leaseThere && leaseHolder == (p) && leaseGeneration == (g))
#define MARK(set, p) set = set | BIT(p)
#endif

/* Waits for its grant, raises, serves, gives back. A new life begins without a memory. */
proctype Sidecar(byte p)
{
	byte generation;
	bit sent;
wait:
	do
#ifdef LAWLESS
	:: atomic { if :: generation = 1 :: generation = 2 :: generation = ISSUABLE fi; break }
#else
	:: atomic { leaseThere && leaseHolder == p -> generation = leaseGeneration; break }
#endif
	od;
raise:
#ifdef SERVED_BEFORE_RAISE
	goto serve;
#endif
	do
	/* Once, and again when that is given up, though it may be on its way. */
	:: d_step { requested[p] == 0 && answer[p] == nothing && (!sent || losses) ->
		if :: sent -> losses-- :: else fi;
		requested[p] = generation; requestNonce[p] = nonce[p]; sent = 1
	   }
	:: d_step { losses && answer[p] != nothing -> answer[p] = broken; answered[p] = 0; losses-- }
	:: d_step { answer[p] == broken -> answer[p] = nothing; sent = 0 }
	:: answer[p] == raised -> goto serve
	:: d_step {
		answer[p] == refused ->
		if :: OURS(p, generation) -> leaseFloor = answered[p]; leaseFresh = 0 :: else fi;
		answer[p] = nothing; answered[p] = 0
	   }; goto lost
	:: !OURS(p, generation) -> goto lost
	:: atomic { restarts -> restarts--; goto again }
	od;
serve:
	atomic {
		HOLDS(INV_4_raise_before_read, HAS(raisedEver, p));
		served[p] = generation; servedHistory[p] = answered[p]; sent = 0;
		answer[p] = nothing; answered[p] = 0
	};
	do
	/* A renewal: whoever has read the Lease before must read it again. */
	:: d_step { OURS(p, generation) && leaseFresh && !HAS(over, p) -> leaseFresh = 0 }
	:: HAS(worked, p) -> break
	:: !OURS(p, generation) -> goto lost
	/* The database has ended this generation. */
	:: served[p] == 0 -> goto lost
	:: atomic { restarts -> restarts--; goto again }
	od;
	/* Given back, as read and as it was read; then the pod ends, and has succeeded, whoever is the owner by then. */
	atomic {
#ifdef RELEASED_BLINDLY
		if :: leaseThere ->
#else
		if :: OURS(p, generation) ->
#endif
			HOLDS(INV_6_match_to_touch, OURS(p, generation));
			leaseHolder = 0; leaseFresh = 0
		:: else
		fi
	};
end:
	MARK(succeeded, p);
	goto stop;
lost:
	MARK(over, p);
	if
	:: goto stop
	:: atomic { restarts -> restarts--; goto again }
	fi;
again:
	atomic {
		nonce[p]++; generation = 0; sent = 0;
		answer[p] = nothing; answered[p] = 0;
		goto wait
	};
stop:
	skip
}

/* A server process that a raise of this pod has reached, also one of its earlier life. */
proctype Raise(byte p)
{
	byte generation, mine;
	do
	:: atomic {
		requested[p] && raiser == 0 ->
		generation = requested[p]; mine = requestNonce[p];
		requested[p] = 0; requestNonce[p] = 0;
		if
		:: rowGeneration == generation && rowHolder == p && rowNonce == mine ->
			/* Its own raise, whose answer was lost. */
			if
			:: mine != nonce[p]
			:: mine == nonce[p] && rowHistory == history -> answer[p] = raised; answered[p] = history
			:: mine == nonce[p] && rowHistory != history -> answer[p] = refused; answered[p] = rowGeneration
			fi
#ifdef FENCE_NOT_COMPARED
		:: !(rowGeneration == generation && rowHolder == p) && HAS(claims, p) ->
#else
#ifdef EQUAL_IS_ENOUGH
		:: !(rowGeneration == generation && rowHolder == p && rowNonce == mine) && (rowGeneration > generation || HAS(claims, p)) ->
#else
#ifdef CLAIMS_NOT_READ
		:: !(rowGeneration == generation && rowHolder == p && rowNonce == mine) && rowGeneration >= generation ->
#else
		:: !(rowGeneration == generation && rowHolder == p && rowNonce == mine) && (rowGeneration >= generation || HAS(claims, p)) ->
#endif
#endif
#endif
			if :: mine == nonce[p] -> answer[p] = refused; answered[p] = rowGeneration :: else fi
		:: else -> raiser = p
		fi;
		if :: raiser != p -> generation = 0; mine = 0 :: else fi
	   }
#ifndef NOBODY_ENDED
	/* The drain: every session of an older generation ends, and what it had open with it. */
	:: d_step { raiser == p && generation && inside -> inside = 0 }
#endif
	:: atomic {
#ifdef GATE_NOT_AWAITED
		raiser == p && generation ->
#else
		raiser == p && generation && inside == 0 ->
#endif
		HOLDS(INV_2_one_holder_per_generation, raiserOf[generation] == 0 || raiserOf[generation] == p);
		HOLDS(INV_7_one_pod_one_generation, !HAS(raisedHere, p));
		HOLDS(INV_1_the_fence_only_grows, generation > latest);
		raiserOf[generation] = p; raisedHere = raisedHere | BIT(p); raisedEver = raisedEver | BIT(p); latest = generation;
		rowGeneration = generation; rowHolder = p; rowNonce = mine; rowHistory = history;
		claims = claims | BIT(p); openGate = generation;
		raiser = 0;
		if :: mine == nonce[p] -> answer[p] = raised; answered[p] = history :: else fi;
		generation = 0; mine = 0
	   }
	/* Its connection is lost, or the database was restored. */
	:: d_step {
		generation && (raiser != p || losses) ->
		if :: raiser == p -> raiser = 0; losses-- :: else fi;
		if :: mine == nonce[p] -> answer[p] = broken :: else fi;
		generation = 0; mine = 0
	   }
	od
}

/*
 * The application behind the sidecar: a session is admitted and enters, and commits. What it has sent arrives, whatever has
 * become of its pod.
 */
proctype Session(byte p)
{
	do
	:: d_step {
		served[p] && !HAS(inside, p) && raiser == 0 &&
#ifdef ANY_OPEN_GATE
		openGate >= served[p] && history == servedHistory[p] ->
#else
		openGate == served[p] && rowGeneration == served[p] && rowHolder == p &&
#ifdef HISTORY_NOT_COMPARED
		true ->
#else
		rowHistory == history && servedHistory[p] == history ->
#endif
#endif
		inside = inside | BIT(p)
	   }
	:: atomic {
		HAS(inside, p) ->
		HOLDS(INV_3_no_stale_commit, served[p] == latest);
		inside = WITHOUT(inside, p); MARK(worked, p)
	   }
#ifdef CALM
	/* The pod stands still for good, inside a transaction: its Lease runs out. */
	:: atomic { HAS(inside, p) && restarts -> restarts--; over = over | BIT(p); goto frozen }
#endif
	/* Told that its generation is over, here or in this history: for good. */
	:: d_step {
		served[p] && !HAS(inside, p) && (rowGeneration != served[p] || rowHistory != history || servedHistory[p] != history) ->
		served[p] = 0; servedHistory[p] = 0
	   }
	od;
frozen:
	skip
}

/* People and accidents. */
proctype World()
{
	byte savedRow, savedHolder, savedNonce, savedClaims;
	bit saved;
	do
	:: d_step { deletions && leaseThere -> deletions--; leaseThere = 0; leaseHolder = 0; leaseGeneration = 0; leaseFloor = 0; leaseFresh = 0 }
	:: d_step {
		restores && !saved && raiser == 0 -> saved = 1;
		savedRow = rowGeneration; savedHolder = rowHolder; savedNonce = rowNonce; savedClaims = claims
	   }
	/* To then: another history. What was raised since is not in it. */
	:: d_step {
		restores && saved -> restores--; history++;
		rowGeneration = savedRow; rowHolder = savedHolder; rowNonce = savedNonce; claims = savedClaims; openGate = savedRow;
		rowHistory = (savedRow -> history - 1 : 0);
		savedRow = 0; savedHolder = 0; savedNonce = 0; savedClaims = 0;
		inside = 0; raiser = 0;
		latest = 0; raisedHere = 0;
		raiserOf[1] = 0; raiserOf[2] = 0; raiserOf[ISSUABLE] = 0
	   }
	od
}

init {
	byte i;
	atomic {
		i = 0;
		do :: i < CONTROLLERS -> run Controller(i); i++ :: else -> break od;
		i = 1;
		do :: i <= PODS -> run Sidecar(i); run Raise(i); run Session(i); i++ :: else -> break od;
		run World();
		i = 0
	}
}

#ifdef CALM
/* INV-11: with owners that are ended only when they are over, the job ends. */
ltl INV_11_unfinished_work_is_noticed { <> complete }
#endif
