package pop

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// letters keeps what is filed.
func letters(cfg *Config) *[]DeadLetter {
	var filed []DeadLetter
	cfg.DeadLetter = func(_ context.Context, letter DeadLetter) bool {
		filed = append(filed, letter)
		return true
	}
	return &filed
}

// oneByOne answers each claiming call with the next claim, and with nothing after the last.
func oneByOne(claims ...pg.Claim) func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
	next := 0
	return func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
		if next == len(claims) {
			return pg.Claim{}, nil
		}
		next++
		claim := claims[next-1]
		if r.AutoAck && r.Accept != nil {
			if err := r.Accept(claim); err != nil {
				return pg.Claim{}, err
			}
		}
		return claim, nil
	}
}

func TestWhatMustNotBeDeliveredIsFiledAndPassedOver(t *testing.T) {
	t.Parallel()
	request := Request{Tenant: tenant, Kind: Partition, Queue: "orders", Partition: "eu", Group: "g"}
	poison := claimOf(framesOf(t, false, `"poison"`))
	poison.Partitions[0].Poison = true
	for name, row := range map[string]struct {
		claims  []pg.Claim
		autoAck bool
		reason  string
	}{
		"DeliveredTooOften":     {[]pg.Claim{poison, claimOf(framesOf(t, false, `"a"`))}, false, ""},
		"NotDecryptable":        {[]pg.Claim{claimOf(framesOf(t, true, `"foreign"`, `"x"`)), claimOf(framesOf(t, true, `"a"`))}, false, "not delivered: no key opens it"},
		"NotDecryptableAutoAck": {[]pg.Claim{claimOf(framesOf(t, true, `"foreign"`, `"x"`)), claimOf(framesOf(t, true, `"foreign"`)), claimOf(framesOf(t, true, `"a"`))}, true, "not delivered: no key opens it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Opener: upper}
			filed := letters(&cfg)
			server, db, _ := setup(t, cfg)
			db.claim = oneByOne(row.claims...)
			request := request
			request.AutoAck = row.autoAck
			result, err := server.Pop(t.Context(), request)
			require.NoError(t, err)
			require.NotNil(t, result, "what is behind it is delivered by the same pop")
			defer result.Release()
			require.Equal(t, 1, result.Messages())
			require.Len(t, *filed, 1)
			letter := (*filed)[0]
			require.NotEmpty(t, letter.LeaseID)
			letter.LeaseID = ""
			require.Equal(t, DeadLetter{Tenant: tenant, Queue: "orders", Partition: "eu", PartitionID: partitionID, Group: "g", Reason: row.reason}, letter)
			require.EqualValues(t, 1, server.Stats().DeadLetters)
		})
	}
}

// A filed message must not hide its neighbours of other partitions.
func TestOtherBatchesOfTheClaimAreDelivered(t *testing.T) {
	t.Parallel()
	cfg := Config{Opener: upper}
	filed := letters(&cfg)
	server, db, _ := setup(t, cfg)
	claim := claimOf(framesOf(t, false, `"poison"`))
	claim.Partitions[0].Poison = true
	other := claimOf(framesOf(t, false, `"b"`)).Partitions[0]
	other.Partition = "us"
	claim.Partitions = append(claim.Partitions, other)
	db.claim = oneByOne(claim)
	result, err := server.Pop(t.Context(), Request{Tenant: tenant, Queue: "orders", Group: "g"})
	require.NoError(t, err)
	defer result.Release()
	require.Equal(t, "us", result.Partitions[0].Partition)
	require.Len(t, *filed, 1)
}

// A message that cannot be filed stays where it is: its lease runs out, and nobody gets what is behind it before.
func TestWhatCannotBeFiledIsNotPassedOver(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{DeadLetter: func(context.Context, DeadLetter) bool { return false }})
	poison := claimOf(framesOf(t, false, `"poison"`))
	poison.Partitions[0].Poison = true
	db.claim = oneByOne(poison, claimOf(framesOf(t, false, `"a"`)))
	result, err := server.Pop(t.Context(), Request{Tenant: tenant, Kind: Partition, Queue: "orders", Partition: "eu", Group: "g"})
	require.NoError(t, err)
	require.Nil(t, result)
}

// A broker that lacks a key which others have is at fault itself: nothing is given up.
func TestAKeyThatOthersHaveIsMissingHere(t *testing.T) {
	t.Parallel()
	for _, autoAck := range []bool{false, true} {
		cfg := Config{Opener: upper, KeyMissing: func(context.Context, error) bool { return true }}
		filed := letters(&cfg)
		server, db, _ := setup(t, cfg)
		db.claim = oneByOne(claimOf(framesOf(t, true, `"foreign"`)))
		_, err := server.Pop(t.Context(), Request{Tenant: tenant, Kind: Partition, Queue: "orders", Partition: "eu", Group: "g", AutoAck: autoAck})
		require.ErrorIs(t, err, ErrKeyMissing)
		require.Empty(t, *filed)
		require.Len(t, db.released, map[bool]int{false: 1, true: 0}[autoAck])
	}
}
