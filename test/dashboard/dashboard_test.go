package dashboard

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

const tokenSecret = "a secret of this test, which is long enough for HS256"

// token is one that the guarded broker accepts.
func token(t *testing.T, subject, role string) string {
	t.Helper()
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": subject, "role": role, "exp": time.Now().Add(time.Hour).Unix()}).SignedString([]byte(tokenSecret))
	require.NoError(t, err)
	return signed
}

// patience is how long the browser may take for everything.
const patience = 8 * time.Minute

// What the pages show and do is checked by dashboard/e2e/run.mjs; every line it prints is one check.
func TestConsoleInABrowser(t *testing.T) {
	t.Parallel()
	const modules = "../../dashboard/node_modules/playwright-core"
	if _, err := os.Stat(modules); err != nil {
		t.Fatalf("%s is not there: run `npm ci` in dashboard, as `make test` does", modules)
	}
	// Pictures change with every run, since they show times and rates: they are made where nobody keeps them, unless asked for.
	pictures := os.Getenv("QUEEN_SCREENSHOTS")
	if pictures == "" {
		pictures = t.TempDir()
	} else {
		var err error
		pictures, err = filepath.Abs(pictures)
		require.NoError(t, err)
	}

	t.Run("TheShop", func(t *testing.T) {
		t.Parallel()
		open := stack.Start(t)
		furnish(t, open)
		programs := t.TempDir()
		build, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", programs, "queenmq/cmd/queenctl").CombinedOutput()
		require.NoError(t, err, "build queenctl: %s", build)
		browse(t, "shop", map[string]any{"url": open.URL, "programs": programs, "pictures": pictures})
	})
	t.Run("Others", func(t *testing.T) {
		t.Parallel()
		attacked := stack.Start(t, map[string]string{"JWT_ISSUER": hostile})
		attack(t, attacked)
		linger(t, attacked)
		crowded := stack.Start(t)
		crowd(t, crowded)
		guarded := stack.Start(t, map[string]string{"JWT_ENABLED": "true", "JWT_ALGORITHM": "HS256", "JWT_SECRET": tokenSecret})
		browse(t, "others", map[string]any{
			"guarded": guarded.URL, "attacked": attacked.URL, "crowded": crowded.URL, "pictures": pictures,
			"tokens": map[string]string{"reader": token(t, "rita", "read-only"), "writer": token(t, "will", "write-only"), "admin": token(t, "adam", "admin")},
		})
	})
}

// browse runs one part of what a person does.
func browse(t *testing.T, part string, settings map[string]any) {
	t.Helper()
	text, err := json.Marshal(settings)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	node := exec.CommandContext(ctx, "node", "run.mjs", part)
	node.Dir = "../../dashboard/e2e"
	node.Env = append(os.Environ(), "QUEEN_E2E="+string(text))
	out, err := node.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err, "the browser found faults, see above")
}
