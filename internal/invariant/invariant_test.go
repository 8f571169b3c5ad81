package invariant

import "testing"

func TestHolds(t *testing.T) {
	Holds(true, "never said")
	defer func() {
		if said := recover(); (said != nil) != On || On && said != "invariant: 3 is negative" {
			t.Errorf("a build that checks (%v) says %v", On, said)
		}
	}()
	Holds(false, "%d is negative", 3)
}
