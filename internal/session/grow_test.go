package session

import (
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// What a growth brings comes in pieces, ends with its message, and may be given up for another one.
func TestGrowth(t *testing.T) {
	s := serve(t, Config{})
	c, p := greeted(t, s)
	regions := []replica.Region{region("a"), region("b")}
	c.send(wire.MRegions, wire.AppendRegions(nil, 0, regions))
	c.send(wire.MAttach, wire.AppendAttach(nil, 2, replica.NoGroup))
	next[Attach](t, s)
	c.send(wire.MRegions, wire.AppendRegions(nil, 0, []replica.Region{region("x"), region("y"), region("z")}))
	c.send(wire.MRecipePart, wire.Piece{Total: 9, Bytes: []byte("given")}.Append(nil))
	grown := []replica.Region{region("late"), region("a"), region("b")}
	c.send(wire.MRegions, wire.AppendRegions(nil, 0, grown[:1])) // the one before was given up
	c.send(wire.MRegions, wire.AppendRegions(nil, 1, grown[1:]))
	c.send(wire.MRecipePart, wire.Piece{Total: 6, Bytes: []byte("rec")}.Append(nil))
	c.send(wire.MRecipePart, wire.Piece{Offset: 3, Total: 6, Bytes: []byte("ipe")}.Append(nil))
	g := wire.Growth{Step: 41, Regions: 3, Recipe: 6}
	c.send(wire.MGrow, g.Append(nil))
	if ev := next[Grow](t, s); ev.Peer != p || ev.Header.Request != 9 || ev.Growth != g || !reflect.DeepEqual(ev.Regions, grown) || string(ev.Recipe) != "recipe" {
		t.Errorf("%+v", ev)
	}
	c.send(wire.MRecipe, wire.AppendRecipe(nil, 4))
	if ev := next[Recipe](t, s); ev.Offset != 4 {
		t.Errorf("%+v", ev)
	}
}

// A growth that is not whole, or not a rank's that has its arena, ends the session with the reason.
func TestGrowthIsRefused(t *testing.T) {
	attach := func(c *testClient) {
		c.send(wire.MRegions, wire.AppendRegions(nil, 0, []replica.Region{region("a")}))
		c.send(wire.MAttach, wire.AppendAttach(nil, 1, replica.NoGroup))
	}
	for name, c := range map[string]struct {
		sends func(*testClient)
		want  string
	}{
		"before an attach":          {func(c *testClient) { c.send(wire.MGrow, wire.Growth{Regions: 1}.Append(nil)) }, "before an attach"},
		"a recipe before an attach": {func(c *testClient) { c.send(wire.MRecipePart, wire.Piece{}.Append(nil)) }, "from a rank that has attached"},
		"without its regions":       {func(c *testClient) { attach(c); c.send(wire.MGrow, wire.Growth{Regions: 1}.Append(nil)) }, "growth with 1 regions"},
		"a recipe out of order":     {func(c *testClient) { attach(c); c.send(wire.MRecipePart, wire.Piece{Offset: 3, Total: 6}.Append(nil)) }, "in order"},
		"a recipe that is too large": {func(c *testClient) {
			attach(c)
			c.send(wire.MRecipePart, wire.Piece{Total: replica.MaxRecipe + 1}.Append(nil))
		}, "at most 65536"},
		"no regions": {func(c *testClient) { attach(c); c.send(wire.MGrow, wire.Growth{}.Append(nil)) }, "want at most step"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, Config{})
			peer, _ := greeted(t, s)
			c.sends(peer)
			if r := peer.refused(wire.CodeInvalid); !strings.Contains(r.Text, c.want) {
				t.Errorf("%+v: want %q", r, c.want)
			}
		})
	}
}
