package concurrent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// hostileHints does to the hints between brokers what a network and an enemy can do to them: it sends each again, several times, late and
// in another order; it makes up others that look like theirs; and it ends the sessions they go through, which loses what is under way.
func hostileHints(ctx context.Context, t *testing.T, db *pgxpool.Pool) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { echoHints(ctx, t, db) })
	work.Go(func() { forgeHints(ctx, t, db) })
	work.Go(func() { breakSessions(ctx, t, db) })
}

func notify(ctx context.Context, t *testing.T, db *pgxpool.Pool, text string) {
	if _, err := db.Exec(ctx, `SELECT pg_notify('queen_mesh', $1)`, text); err != nil {
		require.Error(t, ctx.Err(), err.Error())
	}
}

func echoHints(ctx context.Context, t *testing.T, db *pgxpool.Pool) {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return
	}
	defer conn.Release()
	_, err = conn.Exec(ctx, "LISTEN queen_mesh")
	if err != nil {
		return
	}
	random := rand.New(rand.NewPCG(1, 2))
	var echoes sync.WaitGroup
	defer echoes.Wait()
	room := make(chan struct{}, 16)
	for {
		heard, err := conn.Conn().WaitForNotification(ctx)
		if err != nil {
			return
		}
		// Echoes of echoes would never end: most hints are sent again once, some twice, the rest never.
		for range random.IntN(3) {
			delay := time.Duration(random.IntN(500)) * time.Millisecond
			select {
			case room <- struct{}{}:
			default:
				continue
			}
			echoes.Go(func() {
				defer func() { <-room }()
				select {
				case <-time.After(delay):
					notify(ctx, t, db, heard.Payload)
				case <-ctx.Done():
				}
			})
		}
	}
}

func forgeHints(ctx context.Context, t *testing.T, db *pgxpool.Pool) {
	random := rand.New(rand.NewPCG(3, 4))
	head := `{"v":1,"s":"enemy","b":"00000000-0000-7000-8000-0000000000ff","t":`
	for ctx.Err() == nil {
		texts := []string{
			head + fmt.Sprintf(`"m","i":[{"q":"concurrent.test","p":["p%d","no such partition"]},{"q":"no such queue"}]}`, random.IntN(8)),
			head + `"m","i":[{"q":"concurrent.test"}]}`,
			head + `"q","i":[{"q":"concurrent.test"}]}`,
			head + `"g","i":[{"q":"concurrent.test","g":"billing"}]}`,
			head + `"g","i":[{"q":""}]}`,
			head + `"f","enabled":true}`,
			head + `"h","build":"x","at":"nowhere:1","up":5}`,
			`{"v":9}`, `nonsense`, ``,
		}
		notify(ctx, t, db, texts[random.IntN(len(texts))])
		select {
		case <-time.After(time.Duration(random.IntN(10)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func breakSessions(ctx context.Context, t *testing.T, db *pgxpool.Pool) {
	for {
		select {
		case <-time.After(700 * time.Millisecond):
		case <-ctx.Done():
			return
		}
		_, err := db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND (application_name LIKE '% listen' OR application_name LIKE '% notify') AND random() < 0.4`)
		if err != nil {
			require.Error(t, ctx.Err(), err.Error())
		}
	}
}
