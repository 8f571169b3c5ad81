// Package adoption takes back the arenas that outlived a daemon, for the daemon that follows it.
//
// The keeper holds most of them. An arena that the keeper has lost can only come back from the live process of its rank: the node awaits that
// arena, and counts as silent meanwhile. No job is known before a leader is heard, so each arena waits for its job. The arena then takes the
// place of its rank, or of a mirror, or stays as a holder until the next commit, or is given up.
//
// Invariants: each arena leaves the room once, by one effect. Of all arenas of a rank the one of the newest incarnation has the place. A Settle,
// which may have the job fenced and reported, follows the last Place. A process that the list on disk does not name is never killed. What a rank
// sends before its job is known is bounded, and is handed on with the Settle.
//
// The room imports session for the names of what ranks send. It must not import host, nor another room.
package adoption
