package owner

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// ownGroup tells whether a group is root's, or this process's user is alone in it.
func ownGroup(gid uint32) bool {
	if gid == 0 {
		return true
	}
	users, _ := os.ReadFile("/etc/passwd") // what is not there says nothing
	groups, _ := os.ReadFile("/etc/group")
	return alone(string(users), string(groups), uint32(os.Geteuid()), gid)
}

// alone tells whether a group is a user's own, as most systems give each user one: of his name or his number, and nobody else is in it, as far as a host's
// files tell. A directory service's users and groups are in none, so that another group in which the files show nobody may have any number of members.
func alone(users, groups string, uid, gid uint32) bool {
	is := func(field string, n uint32) bool { return field == strconv.FormatUint(uint64(n), 10) }
	var names []string
	for line := range strings.Lines(users) {
		switch f := strings.Split(line, ":"); {
		case len(f) < 4:
		case is(f[2], uid):
			names = append(names, f[0])
		case is(f[3], gid):
			return false
		}
	}
	own := uid == gid
	for line := range strings.Lines(groups) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || !is(f[2], gid) {
			continue
		}
		own = own || slices.Contains(names, f[0])
		for member := range strings.SplitSeq(f[3], ",") {
			if member != "" && !slices.Contains(names, member) {
				return false
			}
		}
	}
	return own
}
