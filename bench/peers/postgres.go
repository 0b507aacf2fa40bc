package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"queenmq/internal/localpg"
)

// A database is a private PostgreSQL with the broker's own settings: every commit is flushed before it is answered.
type database struct {
	server     *localpg.Server
	pool       *pgxpool.Pool
	postmaster int
	version    string
}

// poolSize is how many connections the peers on PostgreSQL share; more clients than that wait for one, which on few
// processors is faster than a connection for each.
const poolSize = 64

func startDatabase(ctx context.Context, dir string) (*database, error) {
	d := &database{}
	var err error
	d.server, err = localpg.Start(ctx, localpg.Options{DataDir: filepath.Join(dir, "postgres"), MaxConnections: 2 * poolSize, Logger: slog.New(slog.DiscardHandler)})
	if errors.Is(err, localpg.ErrNoBinaries) {
		return nil, fmt.Errorf("PostgreSQL %w", errNotInstalled)
	}
	if err != nil {
		return nil, err
	}
	if err := d.connect(ctx); err != nil {
		d.stop()
		return nil, err
	}
	return d, nil
}

func (d *database) connect(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(d.server.ConnString())
	if err != nil {
		return err
	}
	config.MaxConns = poolSize
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	var data string
	if err := d.pool.QueryRow(ctx, `SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1), current_setting('data_directory')`).Scan(&d.version, &data); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return err
	}
	d.postmaster, err = strconv.Atoi(strings.SplitN(string(text), "\n", 2)[0])
	return err
}

func (d *database) program() program { return program{"postgres", d.postmaster} }

// stop ends the server. Stopping nil does nothing.
func (d *database) stop() {
	if d == nil {
		return
	}
	if d.pool != nil {
		d.pool.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = d.server.Stop(ctx)
}
