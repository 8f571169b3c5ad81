package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// ask opens a connection to the victim's admin socket.
func (a *attack) ask(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", a.victim.AdminSocket)
}

const statusRequest = "GET /status HTTP/1.1\r\nHost: admin\r\n\r\n"

func adminIdle(ctx context.Context, a *attack) error {
	list := make([]net.Conn, 500)
	for i := range list {
		c, err := a.ask(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		list[i] = c
		if i%2 == 1 {
			_, _ = io.WriteString(c, statusRequest) // the victim may have hung up
		}
	}
	var s struct{}
	if err := a.get(ctx, "/status", &s); err != nil {
		return fmt.Errorf("status beside 500 idle connections: %w", err)
	}
	return each(ctx, len(list), len(list), func(i int) error {
		if _, err := ends(list[i], 30*time.Second); err != nil {
			return fmt.Errorf("an idle connection: %w", err)
		}
		a.count("hung up", 1)
		return nil
	})
}

func adminLoris(ctx context.Context, a *attack) error {
	for name, text := range map[string]string{
		"headers": "GET /status HTTP/1.1\r\nHost: " + strings.Repeat("a", 1000),
		"body":    "POST /order HTTP/1.1\r\nHost: admin\r\nContent-Length: 60000\r\n\r\n" + strings.Repeat("[", 1000),
	} {
		err := each(ctx, 50, 50, func(int) error {
			c, err := a.ask(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			head := text
			if i := strings.Index(text, "\r\n\r\n"); i >= 0 {
				head = text[i+4:]
				if _, err := io.WriteString(c, text[:i+4]); err != nil {
					return err
				}
			}
			end := time.Now().Add(30 * time.Second)
			for i := 0; time.Now().Before(end) && ctx.Err() == nil; i++ {
				if _, err := c.Write([]byte{head[i%len(head)]}); err != nil {
					a.count("hung up", 1)
					return nil
				}
				sleep(ctx, 50*time.Millisecond)
			}
			return fmt.Errorf("%s a byte at a time: still open after 30 s", name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// endless is a body of so many bytes.
type endless struct{ left int }

func (e *endless) Read(b []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(len(b), e.left)
	for i := range b[:n] {
		b[i] = ' '
	}
	e.left -= n
	return n, nil
}

// order posts a body and returns what the victim says.
func (a *attack) order(ctx context.Context, body io.Reader, length int64) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin/order", body)
	if err != nil {
		return 0, "", err
	}
	req.ContentLength = length
	resp, err := a.admin().RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return resp.StatusCode, string(b), err
}

func adminBody(ctx context.Context, a *attack) error {
	return a.until(ctx, func(i int) error {
		length := int64(1 << 30)
		if i%2 == 1 {
			length = -1 // in chunks
		}
		e := &endless{1 << 30}
		code, text, err := a.order(ctx, e, length)
		sent := 1<<30 - e.left
		a.count("KiB taken", sent>>10)
		if err == nil && code == http.StatusOK {
			return fmt.Errorf("an order of 1 GiB is answered %q", text)
		}
		if sent > 16<<20 {
			return fmt.Errorf("%d bytes of an order were read", sent)
		}
		a.count("refused", 1)
		return nil
	})
}

func adminOrders(ctx context.Context, a *attack) error {
	for name, text := range map[string]string{
		"empty": "", "no JSON": "\x00\xff", "an array": "[1]", "a number": "9", "unknown field": `{"Verb":1,"Why":"x","Zzz":1}`, "deep": strings.Repeat("[", 30_000), "deep objects": strings.Repeat(`{"a":`, 10_000),
		"verb 200": `{"Verb":200}`, "verb -1": `{"Verb":-1}`, "verb 99999999999": `{"Verb":99999999999}`, "a node that there is not": `{"Verb":1,"Node":"nobody","Why":"x"}`,
		"a node's name of 60 KiB": `{"Verb":1,"Node":"` + strings.Repeat("n", 60_000) + `"}`, "add a voter unsigned": `{"Verb":5,"Node":"` + mallory + `","Addr":"127.0.0.1:9"}`,
		"another's node": `{"Verb":0,"Node":"` + mallory + `","Why":"x"}`, "a job that there is not": `{"Verb":3,"Job":"nobody-runs-this","Why":"x"}`,
		"a false signature": `{"Verb":6,"Node":"` + mallory + `","Proof":{"Certificate":"AAAA","Signature":"AAAA","Challenge":"AAAA"}}`,
	} {
		code, said, err := a.order(ctx, bytes.NewReader([]byte(text)), int64(len(text)))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if code == http.StatusOK && !strings.Contains(said, "refused") {
			return fmt.Errorf("%s: %d %.200s", name, code, said)
		}
		if strings.TrimSpace(said) == "" {
			return fmt.Errorf("%s: %d without a word", name, code)
		}
		a.count("refused with the reason", 1)
	}
	return nil
}

func keeper(ctx context.Context, a *attack) error {
	for i := range 300 {
		c, err := call(a.victim.KeeperSocket)
		if err != nil {
			return err
		}
		defer c.Close()
		if i%2 == 0 {
			_ = c.write(junk(256)) // it may have hung up
		}
	}
	a.count("connections", 300)
	a.wait(ctx)
	c, err := call(a.victim.KeeperSocket)
	if err != nil {
		return fmt.Errorf("the keeper takes nobody: %w", err)
	}
	defer c.Close()
	_ = c.write(make([]byte, 100)) // it may have hung up
	return c.gone(15 * time.Second)
}
