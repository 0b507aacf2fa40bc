package browse

import (
	"context"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// Bounds of one step of a search. It ends with the first that is reached, after the page of messages that was being looked at.
const (
	// searchMost is how many messages a step unpacks and looks at.
	searchMost = 2000
	// searchAtOnce is how many it reads from the database at a time.
	searchAtOnce = 200
	// searchTime is how long a step goes on. What one page takes comes on top.
	searchTime = 400 * time.Millisecond
	// searchBytes is how many bytes of payloads it looks at.
	searchBytes = 16 << 20
)

// Searched is what a step of a search has looked at.
type Searched struct {
	// Messages were looked at. Of these, Unreadable ones could not be judged: retention took them, they are damaged, or no key opens them.
	Messages, Unreadable int
	// Until is when the last one was stored; zero when there was none.
	Until time.Time
}

// Search is List with only those messages whose payloads fulfil a condition. It looks at a bounded number of messages and says at how many;
// Next of the page leads on, whether any was found or not, until everything that the filter chooses was looked at. A page has at most
// filter.Limit messages; with a limit of 1 each message is a page of its own, so that larger ones are cheaper.
func (r *Reader) Search(ctx context.Context, tenant uuid.UUID, filter pg.MessageFilter, c Condition) (Page, Searched, error) {
	return r.searchWithin(ctx, tenant, filter, c, searchMost, time.Now().Add(searchTime))
}

func (r *Reader) searchWithin(ctx context.Context, tenant uuid.UUID, filter pg.MessageFilter, c Condition, most int, end time.Time) (Page, Searched, error) {
	limit := filter.Limit
	if limit <= 0 {
		limit = searchAtOnce
	}
	// What is read at a time fits into what is left of the page: a page ends where the database can go on.
	atOnce := min(max(limit/2, 1), searchAtOnce)
	var found Page
	var looked Searched
	for size := 0; ; {
		filter.Limit = min(atOnce, most-looked.Messages)
		page, err := r.List(ctx, tenant, filter)
		if err != nil {
			return Page{}, looked, err
		}
		kept := found.Messages
		found.MessagePage = page.MessagePage
		found.MessagePage.Messages = nil
		for i := range page.Messages {
			m := &page.Messages[i]
			looked.Messages++
			looked.Until = m.CreatedAt
			size += len(m.Payload)
			if !m.Available || m.sealed {
				looked.Unreadable++
			} else if c.Holds(m.Payload) {
				kept = append(kept, *m)
			}
		}
		found.Messages = kept
		if page.Next == "" || len(kept)+atOnce > limit || looked.Messages >= most || size >= searchBytes || !time.Now().Before(end) {
			return found, looked, nil
		}
		filter.After, filter.Offset = page.Next, 0
	}
}
