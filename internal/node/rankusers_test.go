package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/session"
)

func TestCommonGroup(t *testing.T) {
	const all, ml, docker, alices, bobs = 100, 2000, 998, 1001, 1002
	alice := account{"alice", 1001, alices, []int{alices, all, docker, ml}}
	bob := account{"bob", 1002, bobs, []int{bobs, ml, all}}
	everyones := func(a account) account { a.primary = all; return a }
	any := func(int) bool { return true }
	for name, tc := range map[string]struct {
		list  []account
		gives func(int) bool
		want  int
	}{
		"a user's own":                {[]account{alice}, any, alices},
		"of two, the lowest":          {[]account{alice, bob}, any, all},
		"not what all users are":      {[]account{everyones(alice), everyones(bob)}, any, ml},
		"what the daemon may give":    {[]account{alice, bob}, func(g int) bool { return g == ml }, ml},
		"none that it may give":       {[]account{alice, bob}, func(g int) bool { return g == docker }, session.Everybody},
		"nobody knows the second one": {[]account{alice, {"61001", 61001, -1, nil}}, any, session.Everybody},
		"root's is none":              {[]account{{"root", 0, 0, []int{0}}}, any, session.Everybody},
	} {
		if got, ok := commonGroup(tc.list, tc.gives); got != tc.want || ok != (tc.want != session.Everybody) {
			t.Errorf("%s: %d, %v; want %d", name, got, ok, tc.want)
		}
	}
}

// What a configuration says of the ranks' socket, on this machine: by numbers that no account has.
func TestRankGroup(t *testing.T) {
	own := fmt.Sprint(os.Getegid())
	if os.Geteuid() == 0 {
		own = "61000"
	}
	for name, tc := range map[string]struct {
		users         []string
		group         string
		line, warning string // parts
		err           string
	}{
		"nobody is named":       {nil, "", "", "", ""},
		"unknown users":         {[]string{"61001", "61002"}, "", "", "no group that the daemon may give has all rank_users", ""},
		"open on purpose":       {[]string{"61001"}, noGroup, "", "as rank_group says", ""},
		"a group by number":     {[]string{"61001"}, own, "socket /s: open to group ", "61001 of rank_users are not in it", ""},
		"no such group":         {[]string{"61001"}, "nosuchgroup", "", "", "groupadd nosuchgroup"},
		"root's group":          {[]string{"61001"}, "0", "", "", "root's group"},
		"a user that is none":   {[]string{"nosuchuser"}, own, "", "", "make the user on this node"},
		"a number that is none": {[]string{"-3"}, own, "", "", "is no user"},
	} {
		c := &config.Config{Socket: "/s", RankUsers: tc.users, RankGroup: tc.group}
		_, err := rankUsers(c)
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		}
		line, warning := Reach(c)
		if !strings.Contains(line, tc.line) || !strings.Contains(warning, tc.warning) || tc.warning == "" && warning != "" {
			t.Errorf("%s: %q, %q", name, line, warning)
		}
	}
}
