package trust

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

// figuresLate is more than a minute: when a minute ends between a push and the flush that counts it, the page shows the minute
// of the push until the next one is over.
const figuresLate = 100 * time.Second

// The public page names no tenant, unless the operator says so; then every tenant's queue is by itself.
func TestMetricsNameTenantsOnlyWhenTold(t *testing.T) {
	t.Parallel()
	for setting, labelled := range map[string]bool{"false": false, "true": true} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			s := stack.Start(t, map[string]string{"QUEEN_TENANCY_HEADER": "true", "QUEEN_METRICS_TENANT_LABEL": setting, "METRICS_FLUSH_MS": "1000"})
			tenants := []uuid.UUID{uuid.New(), uuid.New()}
			for _, tenant := range tenants {
				as(t, s.URL, tenantHeader(tenant)).mustPush("orders", "a", "1")
			}
			const family = "queen_queue_push_messages_per_minute{"
			public := as(t, s.URL, nil)
			want := []string{family + `queue="orders"} 2`}
			if labelled {
				want = nil
				for _, tenant := range tenants {
					want = append(want, family+`tenant="`+tenant.String()+`",queue="orders"} 1`, family+`queue="orders",tenant="`+tenant.String()+`"} 1`)
				}
			}
			var page string
			require.Eventually(t, func() bool {
				page = public.call("GET", "/metrics/prometheus", "").body
				found := 0
				for _, line := range want {
					if strings.Contains(page, line) {
						found++
					}
				}
				return found == max(len(want)/2, 1)
			}, figuresLate, 200*time.Millisecond, "the figures of the pushes do not come")
			for _, tenant := range tenants {
				require.Equal(t, labelled, strings.Contains(page, tenant.String()))
			}
		})
	}
}
