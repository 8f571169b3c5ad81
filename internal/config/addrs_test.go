package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestFurtherAddrs(t *testing.T) {
	host := []HostAddr{
		{"lo", netip.MustParseAddr("127.0.0.1")},
		{"eth0", netip.MustParseAddr("10.0.0.1")},
		{"eth1", netip.MustParseAddr("10.1.0.1")},
		{"eth1", netip.MustParseAddr("10.1.0.2")},
		{"eth1", netip.MustParseAddr("fe80::1")},
		{"eth1", netip.MustParseAddr("fd00::1")},
	}
	for range 9 {
		host = append(host, HostAddr{"eth2", netip.MustParseAddr(fmt.Sprintf("10.2.0.%d", len(host)))})
	}
	for _, tc := range []struct {
		addrs   []string
		want    []string
		missing string // in the error; empty: none is missing
		err     string
	}{
		{nil, nil, "", ""},
		{[]string{"10.1.0.2"}, []string{"10.1.0.2:7400"}, "", ""},
		{[]string{"::ffff:10.1.0.2"}, []string{"10.1.0.2:7400"}, "", ""},
		{[]string{"10.0.0.0/15"}, []string{"10.1.0.1:7400", "10.1.0.2:7400"}, "", ""},
		{[]string{"eth1", "10.1.0.1"}, []string{"10.1.0.1:7400", "10.1.0.2:7400", "[fd00::1]:7400"}, "", ""},
		{[]string{"eth0"}, nil, "", ""}, // addr's own alone
		{[]string{"eth8", "eth9", "10.1.0.1"}, []string{"10.1.0.1:7400"}, `addrs[1]: "eth9"`, ""},
		{[]string{"10.9.0.0/16"}, nil, `addrs[0]: "10.9.0.0/16"`, ""},
		{[]string{"10.2.0.0/16"}, nil, "", "addrs: 9 addresses of this host"},
	} {
		c := good()
		c.Addrs = tc.addrs
		got, missing, err := c.FurtherAddrs(host)
		var text strings.Builder
		for _, m := range missing {
			fmt.Fprintln(&text, m)
		}
		if !slices.Equal(got, tc.want) || (missing == nil) != (tc.missing == "") || !strings.Contains(text.String(), tc.missing) || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%v: %v, missing %v, %v; want %+v", tc.addrs, got, missing, err, tc)
		}
	}
}
