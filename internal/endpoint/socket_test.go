package endpoint

import (
	"errors"
	"net"
	"testing"
)

// A port that nobody asked for is one that TCP has too; one that was asked for is kept without.
func TestBindChoosesPortsFreeForBoth(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		taken      int // how many numbers TCP refuses
		tries      int
		withoutTCP bool
	}{
		{"free at once", "127.0.0.1:0", 0, 1, false},
		{"chosen again", "127.0.0.1:0", 3, 4, false},
		{"given up", "127.0.0.1:0", portTries, portTries, true},
		{"asked for", "", 1, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.addr == "" {
				free, err := net.ListenPacket("udp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				c.addr = free.LocalAddr().String()
				if err := free.Close(); err != nil {
					t.Fatal(err)
				}
			}
			tries := 0
			udp, tcp, notes, err := bind(c.addr, func(a *net.UDPAddr, note func(string, ...any)) net.Listener {
				if tries++; tries <= c.taken {
					note("TCP %s is taken", a)
					return nil
				}
				ln, err := net.Listen("tcp", "127.0.0.1:0") // of any number: that of the port itself may be somebody's
				if err != nil {
					t.Error(err)
				}
				return ln
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = errors.Join(udp.Close(), closeListener(tcp)) }()
			said := 0
			for _, n := range notes {
				if n == "TCP "+udp.LocalAddr().String()+" is taken" {
					said++
				}
			}
			if tries != c.tries || (tcp == nil) != c.withoutTCP || (said == 1) != c.withoutTCP {
				t.Errorf("%d tries, TCP %v, notes %q: want %d tries, without TCP %v, and a note of the port that was kept alone", tries, tcp, notes, c.tries, c.withoutTCP)
			}
		})
	}
}
