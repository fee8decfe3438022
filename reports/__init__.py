"""Tables, figures and the HTML report; reads the store and knows nothing of torch."""
