package prototest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Needs skips a test that lacks something of its machine, by name: root, docker, ... It fails instead where WORKERD_TEST_REQUIRE,
// a list split at commas, has that name.
func Needs(t testing.TB, what, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("WORKERD_TEST_REQUIRE"), ","), what) {
		t.Fatalf("%s is required: %s", what, why)
	}
	t.Skipf("%s: %s", what, why)
}
