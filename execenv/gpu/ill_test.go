package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestXIDs(t *testing.T) {
	for code, want := range map[uint64]string{
		13: "", 31: "", 43: "", 45: "", 63: "", 94: "", 109: "",
		48: "XID 48: double-bit ECC error", 79: "XID 79: the card has fallen off the bus", 999: "XID 999", 7: "XID 7",
	} {
		require.Equal(t, want, xidIll(code), code)
	}
}
