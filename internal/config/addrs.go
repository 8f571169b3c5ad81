package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/replicad/replicad/replica"
)

// HostAddr is an address of this host and the interface that has it.
type HostAddr struct {
	Interface string
	IP        netip.Addr
}

// entry is one of Addrs: exactly one field is set.
type entry struct {
	ip     netip.Addr
	prefix netip.Prefix
	name   string // an interface's
}

func parseEntry(s string) (e entry, ok bool) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return entry{ip: ip.Unmap()}, !ip.IsUnspecified() && ip.Zone() == ""
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		return entry{prefix: p}, err == nil
	}
	bad := s == "" || s == "." || s == ".." || len(s) > maxInterface || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' })
	return entry{name: s}, !bad
}

// takes tells whether the entry names an address of this host. A network or an interface names those that other hosts can use.
func (e entry) takes(h HostAddr) bool {
	switch {
	case e.ip.IsValid():
		return e.ip == h.IP
	case h.IP.IsLinkLocalUnicast(), h.IP.IsMulticast():
		return false
	case e.prefix.IsValid():
		return e.prefix.Contains(h.IP)
	}
	return e.name == h.Interface
}

// FurtherAddrs resolves Addrs, in their order, to host:port with Addr's port, given the addresses of this host. Addr's own is left out.
// missing are the entries that name none of them now; err: they name too many.
func (c *Config) FurtherAddrs(host []HostAddr) (addrs []string, missing []error, err error) {
	own, port, err := splitAddr(c.Addr)
	if err != nil {
		return nil, nil, fmt.Errorf("addr %q: want %w", c.Addr, err)
	}
	for i, s := range c.Addrs {
		found := false
		e, _ := parseEntry(s) // Validate has refused what is none
		for _, h := range host {
			if !e.takes(h) {
				continue
			}
			found = true
			if at := net.JoinHostPort(h.IP.String(), strconv.Itoa(int(port))); h.IP.String() != own && !slices.Contains(addrs, at) {
				addrs = append(addrs, at)
			}
		}
		if !found {
			missing = append(missing, &FieldError{fmt.Sprintf("addrs[%d]", i), strconv.Quote(s), "an address, network or interface that this host has: `ip addr` lists them; once it is there, start the daemon again",
				"this node is reached by its other addresses alone"})
		}
	}
	if len(addrs) > replica.MaxAddrs {
		return nil, nil, &FieldError{"addrs", fmt.Sprintf("%d addresses of this host (%s)", len(addrs), strings.Join(addrs, ", ")), fmt.Sprintf("at most %d: name narrower networks, or single addresses", replica.MaxAddrs), "each is probed by every node and registered in the Raft log"}
	}
	return addrs, missing, nil
}

func (c *Config) checkAddrs(v *faults) {
	if len(c.Addrs) > replica.MaxAddrs {
		v.add("addrs", fmt.Sprintf("%d entries", len(c.Addrs)), fmt.Sprintf("at most %d", replica.MaxAddrs), "each is probed by every node and registered in the Raft log")
	}
	for i, s := range c.Addrs {
		if _, ok := parseEntry(s); !ok {
			v.add(fmt.Sprintf("addrs[%d]", i), strconv.Quote(s), "an IP address without a port, a network such as 10.1.0.0/16, or the name of an interface", "this node would be reached by its other addresses alone")
		}
	}
	if host, _, err := splitBind(c.Listen); len(c.Addrs) > 0 && c.Listen != "" && err == nil && !wildcard(host) {
		v.add("listen", strconv.Quote(c.Listen), "a wildcard such as 0.0.0.0:7400, or no listen, beside addrs", "the daemon would not hear what comes to its further addresses")
	}
}
