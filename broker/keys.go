package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"queenmq/internal/engine/rekey"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
	"queenmq/internal/secret"
	"queenmq/internal/upkeep"
)

// ringIDs are the ids of all keys, the active one first; none without a key.
func (t trust) ringIDs() []string {
	if t.ring == nil {
		return nil
	}
	return t.ring.IDs()
}

// keyMissing tells whether a payload cannot be opened because this broker lacks a key that others encrypt with.
func keyMissing(keys *upkeep.Keys) func(context.Context, error) bool {
	return func(ctx context.Context, err error) bool {
		why, ok := errors.AsType[*secret.UndecryptableError](err)
		return ok && why.Envelope && !why.Known && keys.Lacks(ctx, why.Key.String())
	}
}

// checkKeys refuses to start with keys that do not open what the other brokers of the database store: a wrong key is found here and not
// message by message. Without any key the broker starts, and refuses what is encrypted.
func checkKeys(ctx context.Context, trusted trust, keys *upkeep.Keys) error {
	if trusted.ring == nil {
		return nil
	}
	missing, err := keys.Missing(ctx)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("brokers of this database encrypt with key %s, which neither QUEEN_ENCRYPTION_KEY nor QUEEN_ENCRYPTION_KEYS_OLD has: "+
			"add it to QUEEN_ENCRYPTION_KEYS_OLD; queen keys check retires keys under which nothing is stored any more", strings.Join(missing, ", "))
	}
	return nil
}

// errNoKey says that a command about keys has none.
var errNoKey = errors.New("QUEEN_ENCRYPTION_KEY is not set: there is no key to work with")

// CheckKeys looks at everything that is stored, says on w how much of it lies under which key, and retires keys that are not used any
// more. What cannot be opened with the configured keys is an error.
func CheckKeys(ctx context.Context, cfg *Config, logger *slog.Logger, w io.Writer) error {
	return withKeys(ctx, cfg, logger, func(db *pg.DB, ring *secret.Ring) error {
		total, err := db.StoredRows(ctx)
		if err != nil {
			return err
		}
		shown := progress{w: w, total: total}
		census, err := rekey.Count(ctx, db, ring, func(rows int64) { shown.show(rows, "rows looked at") })
		if err != nil {
			return err
		}
		return report(ctx, db, ring, census, w)
	})
}

// RotateKeys puts everything that is stored under the active key, and then does what CheckKeys does. It goes on where an earlier run
// ended.
func RotateKeys(ctx context.Context, cfg *Config, logger *slog.Logger, w io.Writer) error {
	return withKeys(ctx, cfg, logger, func(db *pg.DB, ring *secret.Ring) error {
		packer, err := segment.NewPacker(cfg.Push.ZstdLevel)
		if err != nil {
			return fmt.Errorf("QUEEN_V2_ZSTD_LEVEL: %w", err)
		}
		total, err := db.StoredRows(ctx)
		if err != nil {
			return err
		}
		shown := progress{w: w, total: total}
		done, err := rekey.Rotate(ctx, db, ring, packer, func(r pg.Rotation) {
			shown.show(r.Seen, fmt.Sprintf("rows looked at, %d written again, %d payloads re-encrypted", r.Changed, r.Payloads))
		})
		if err != nil {
			return fmt.Errorf("after %d rows, %d payloads re-encrypted (run the command again to go on): %w", done.Seen, done.Payloads, err)
		}
		_, _ = fmt.Fprintf(w, "done: %d rows looked at, %d written again, %d payloads re-encrypted under key %s, %d cannot be opened\n",
			done.Seen, done.Changed, done.Payloads, done.Key, done.Unreadable)
		census, err := rekey.Count(ctx, db, ring, func(int64) {})
		if err != nil {
			return err
		}
		return report(ctx, db, ring, census, w)
	})
}

func withKeys(ctx context.Context, cfg *Config, logger *slog.Logger, use func(*pg.DB, *secret.Ring) error) error {
	ring, err := secret.NewRing(cfg.Secrets.Key.Reveal(), cfg.Secrets.OldKeys.Reveal())
	switch {
	case err != nil:
		return err
	case ring == nil:
		return errNoKey
	}
	return withDatabase(ctx, cfg, logger, func(db *pg.DB) error { return use(db, ring) })
}

// A progress shows how far a walk has come, a line per tenth.
type progress struct {
	w           io.Writer
	total, next int64
}

func (p *progress) show(rows int64, what string) {
	if p.total == 0 || rows < p.next {
		return
	}
	p.next = rows + max(p.total/10, 1)
	_, _ = fmt.Fprintf(p.w, "%d of %d %s\n", rows, p.total, what)
}

// report writes what was found and retires the keys that are not used.
func report(ctx context.Context, db *pg.DB, ring *secret.Ring, census rekey.Census, w io.Writer) error {
	inUse, err := db.EncryptionKeys(ctx)
	if err != nil {
		return err
	}
	configured := ring.IDs()
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "KEY\tPAYLOADS\tSTATE")
	for i, id := range configured {
		n := census.Payloads[id]
		state := "active: encrypts from now on"
		if i > 0 {
			if state, err = oldKeyState(ctx, db, id, n, slices.Contains(inUse, id)); err != nil {
				return err
			}
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%s\n", id, n, state)
	}
	var unreadable int64
	for _, id := range slices.Sorted(maps.Keys(census.Unreadable)) {
		n := census.Unreadable[id]
		unreadable += n
		name := id
		if id == "" {
			name = "(none)"
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\tcannot be opened with the configured keys\n", name, n)
	}
	for _, id := range inUse {
		if !slices.Contains(configured, id) && census.Unreadable[id] == 0 {
			state, err := oldKeyState(ctx, db, id, 0, true)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(table, "%s\t0\tnot configured here; %s\n", id, state)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if unreadable > 0 {
		return fmt.Errorf("%d payloads cannot be opened: add their keys to QUEEN_ENCRYPTION_KEYS_OLD", unreadable)
	}
	return nil
}

func oldKeyState(ctx context.Context, db *pg.DB, id string, payloads int64, inUse bool) (string, error) {
	if payloads > 0 {
		return "needed", nil
	}
	if inUse {
		retired, err := db.RetireEncryptionKey(ctx, id)
		switch {
		case err != nil:
			return "", err
		case !retired:
			return "nothing is stored under it, but a broker encrypted with it in the last five minutes: keep it", nil
		}
	}
	return "not used any more: it may be removed", nil
}
