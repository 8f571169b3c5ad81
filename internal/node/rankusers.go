package node

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/session"
)

// noGroup is rank_group's word for a socket that everybody may connect to.
const noGroup = "none"

// users are those who may have ranks and launchers on this node, beside the daemon's own and root.
type users struct {
	numbers []int
	group   int      // that the socket is given; session.Everybody: none
	open    string   // why everybody may connect; empty: the group, or nobody else, does
	outside []string // of the configured names: those who are not in the group, as far as this node knows
}

// account is what this node knows of a user.
type account struct {
	name    string
	number  int
	primary int   // group; -1: this node does not know the user, who may be known in a container
	groups  []int // all, the primary one too
}

// rankUsers looks up rank_users and the group of their socket.
func rankUsers(c *config.Config) (u users, err error) {
	u.group = session.Everybody
	var list []account
	for _, name := range c.RankUsers {
		a, err := lookUp(name)
		if err != nil {
			return u, err
		}
		list, u.numbers = append(list, a), append(u.numbers, a.number)
	}
	if len(list) == 0 {
		return u, nil
	}
	mine, err := os.Getgroups()
	if err != nil {
		return u, fmt.Errorf("rank_group: the groups of this process: %w", err)
	}
	mine = append(mine, os.Getegid())
	gives := func(group int) bool { return os.Geteuid() == 0 || slices.Contains(mine, group) }
	switch c.RankGroup {
	case "":
		var ok bool
		if u.group, ok = commonGroup(list, gives); !ok {
			u.group = session.Everybody
			u.open = fmt.Sprintf("no group that the daemon may give has all rank_users, so every user of this node may connect to %s, and one whom nobody named can delay the ranks of others: make a group of them (groupadd, usermod -aG; the daemon's user too, if that is not root) and name it as rank_group", c.Socket)
		}
		return u, nil
	case noGroup:
		u.open = fmt.Sprintf("every user of this node may connect to %s, as rank_group says: one whom nobody named can delay the ranks of others", c.Socket)
		return u, nil
	}
	if u.group, err = groupNumber(c.RankGroup); err != nil {
		return u, err
	}
	if !gives(u.group) {
		return u, fmt.Errorf("rank_group %q: the daemon's user %d is not in it and can't give it the socket: usermod -aG %s of that user, and start the daemon again", c.RankGroup, os.Geteuid(), c.RankGroup)
	}
	for _, a := range list {
		if a.number != 0 && a.number != os.Geteuid() && !slices.Contains(a.groups, u.group) {
			u.outside = append(u.outside, a.name)
		}
	}
	return u, nil
}

// Reach says who may connect to the socket of ranks: in words that config check adds to its own; empty: nobody but the daemon's user and root.
func Reach(c *config.Config) (line, warning string) {
	u, err := rankUsers(c)
	if err != nil || len(u.numbers) == 0 {
		return "", "" // Check says the error
	}
	if u.open != "" {
		return "", "rank_group: " + u.open
	}
	name := strconv.Itoa(u.group)
	if g, err := user.LookupGroupId(name); err == nil {
		name = g.Name
	}
	if len(u.outside) > 0 {
		warning = fmt.Sprintf("rank_group %s: %s of rank_users are not in it, as far as this node knows, and can't connect to %s: usermod -aG %s of each", name, strings.Join(u.outside, ", "), c.Socket, name)
	}
	return fmt.Sprintf("socket %s: open to group %s", c.Socket, name), warning
}

// commonGroup picks a group that all users have, of those that the daemon may give. Of several that is the one that was made for the fewest, as far as numbers
// tell: a user's own where it is one user, else one that is nobody's primary group, since many systems give all users one and the same; then the lowest number.
func commonGroup(list []account, gives func(int) bool) (group int, ok bool) {
	var all []int
	for i, a := range list {
		if i == 0 {
			all = slices.Clone(a.groups)
		}
		all = slices.DeleteFunc(all, func(g int) bool { return g == session.Everybody || !slices.Contains(a.groups, g) || !gives(g) })
	}
	if len(all) == 0 {
		return 0, false
	}
	primary := func(g int) int {
		if slices.ContainsFunc(list, func(a account) bool { return a.primary == g }) == (len(list) == 1) {
			return 0
		}
		return 1
	}
	return slices.MinFunc(all, func(a, b int) int { return cmp.Or(primary(a)-primary(b), a-b) }), true
}

// lookUp finds a user by name or number. A number need not be known here.
func lookUp(name string) (a account, err error) {
	a = account{name: name, primary: -1}
	var u *user.User
	if a.number, err = strconv.Atoi(name); err == nil {
		if a.number < 0 {
			return a, fmt.Errorf("rank_users: %q is no user: give a name or a number", name)
		}
		if u, err = user.LookupId(name); err != nil {
			return a, nil //nolint:nilerr // nobody by that number is known here
		}
	} else if u, err = user.Lookup(name); err != nil {
		return a, fmt.Errorf("rank_users: %q: %w: make the user on this node, or give its number", name, err)
	}
	ids, err := u.GroupIds()
	number, bad := strconv.Atoi(u.Uid)
	primary, worse := strconv.Atoi(u.Gid)
	if err := errors.Join(err, bad, worse); err != nil {
		return a, fmt.Errorf("rank_users: %q: %w: set rank_group, and name users by number", name, err)
	}
	a.number, a.primary = number, primary
	for _, id := range ids {
		if g, err := strconv.Atoi(id); err == nil {
			a.groups = append(a.groups, g)
		}
	}
	return a, nil
}

func groupNumber(name string) (int, error) {
	id := name
	if _, err := strconv.ParseUint(name, 10, 31); err != nil {
		g, err := user.LookupGroup(name)
		if err != nil {
			return 0, fmt.Errorf("rank_group: %q: %w: make the group on this node (groupadd %s), or give its number", name, err, name)
		}
		id = g.Gid
	}
	n, err := strconv.ParseUint(id, 10, 31)
	if err != nil || n == session.Everybody {
		return 0, fmt.Errorf("rank_group: %q is root's group, or none: name one that the rank_users are in", name)
	}
	return int(n), nil
}
