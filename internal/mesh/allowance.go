package mesh

import "time"

const (
	// allowedRate is how many items a second are accepted of one sender, and as many at once.
	allowedRate = 5000
	// sentRate is how many a broker sends, with room below what is accepted of it.
	sentRate = 4000
	// maxSenders bounds the memory for allowances. Those beyond share one.
	maxSenders = 1024
	// senderMemory is how long an unused allowance is kept; by then it is full again.
	senderMemory = time.Minute
)

// allowances bounds what is accepted of each session that sends. The server says which session a notification is from, so that nobody
// can use up the allowance of another. For one goroutine.
type allowances struct {
	senders map[uint32]*allowance
	swept   time.Time
}

type allowance struct {
	left float64
	at   time.Time
}

// take says whether the sender may have weight more items at this moment.
func (a *allowances) take(sender uint32, weight int, now time.Time) bool {
	one := a.senders[sender]
	if one == nil {
		a.sweep(now)
		if len(a.senders) >= maxSenders {
			sender = 0 // no process has this id
			one = a.senders[sender]
		}
		if one == nil {
			one = &allowance{left: allowedRate, at: now}
			a.senders[sender] = one
		}
	}
	one.left = min(one.left+now.Sub(one.at).Seconds()*allowedRate, allowedRate)
	one.at = now
	if one.left < float64(weight) {
		return false
	}
	one.left -= float64(weight)
	return true
}

func (a *allowances) sweep(now time.Time) {
	if len(a.senders) < maxSenders && now.Sub(a.swept) < senderMemory {
		return
	}
	a.swept = now
	for id, one := range a.senders {
		if now.Sub(one.at) > senderMemory {
			delete(a.senders, id)
		}
	}
}
