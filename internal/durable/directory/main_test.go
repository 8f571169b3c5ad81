package directory

import (
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }
