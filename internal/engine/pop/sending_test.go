package pop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An answer that is read slowly keeps its room as long as no pop waits for it, and not much longer.
func TestSending_SlowReadersGiveWayToPopsThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(8<<20, 1<<20)
		answer := func(bytes int64) (given chan struct{}, sent func()) {
			given = make(chan struct{})
			result := &Result{rendered: bytes}
			require.NoError(t, r.wait(t.Context(), &result.room, bytes))
			over := result.Sending(func() { close(given) })
			go func() {
				<-given
				over()
				result.Done()
			}()
			return given, over
		}
		isGiven := func(given chan struct{}) bool {
			synctest.Wait()
			select {
			case <-given:
				return true
			default:
				return false
			}
		}
		slow, _ := answer(r.large.size)
		time.Sleep(time.Hour)
		require.False(t, isGiven(slow), "nobody waits")
		began := time.Now()
		late, sentLate := answer(r.large.size) // waits for the room of the first
		require.True(t, isGiven(slow))
		require.Less(t, time.Since(began), time.Second)

		// It has its time too, whoever waits.
		began = time.Now()
		var waiting hold
		require.NoError(t, r.wait(t.Context(), &waiting, 1<<20))
		require.True(t, isGiven(late))
		require.GreaterOrEqual(t, time.Since(began), wholeAnswer)
		require.Less(t, time.Since(began), wholeAnswer+sendingGrace+time.Second)
		sentLate()
		waiting.release()

		// What was sent is given up no more.
		done, sent := answer(r.large.size)
		sent()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.Error(t, r.wait(ctx, &waiting, 1<<20))
		require.False(t, isGiven(done))
		close(done)
		synctest.Wait()
		require.Zero(t, r.inUse())
		require.Empty(t, r.large.sending)
		time.Sleep(time.Second)
		synctest.Wait()
		require.False(t, r.large.hurrying)
	})
}
