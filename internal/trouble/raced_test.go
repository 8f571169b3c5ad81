//go:build cgo

package trouble_test

import (
	"os"
	"strings"
)

// raced are the tests whose daemons are built with the race detector, where all tests run twice: it makes a daemon three times as expensive, and these
// take the ways of all others. The rest runs without it. TROUBLE_LONG=1 (make test-all) runs all with it, too.
var raced = []string{
	"TestAllDaemonsAreAskedToEnd", "TestAnyFleetGoesOn", "TestDrain", "TestEncryptedJob", "TestJobOnABucket", "TestKilledInMidWrite", "TestKills",
	"TestMirrorsDaemonStaysDown", "TestNameUsedAgain", "TestPairIsCut", "TestReplacementsShareWhatCame", "TestRevokedNode", "TestRunCarriesFiles",
	"TestScrubbersFindWhatRots", "TestUsersApart", "TestVoterIsReplaced",
}

// racedOnly is the expression of them; empty where all are to run.
func racedOnly() string {
	if os.Getenv("TROUBLE_LONG") != "" {
		return ""
	}
	return "^(" + strings.Join(raced, "|") + ")$"
}
