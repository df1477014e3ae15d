/** The browser extension: a click on its button opens the app's form for the page of the active tab. */
import { pageOf } from "../address";

/** The address of the app. The build knows it. */
declare const APP: string;

/** The part of the browser that the extension uses. `activeTab` lets it see the tab of a click. */
declare const chrome: {
  action: { onClicked: { addListener(listener: (tab: { url?: string; title?: string }) => void): void } };
  tabs: { create(tab: { url: string }): Promise<unknown> };
};

/** The longest title of a link. */
const TITLE = 200;

chrome.action.onClicked.addListener(({ url, title = "" }) => {
  // Other users cannot open the browser's own pages, nor files.
  if (url === undefined || !/^https?:/.test(url)) return;
  void chrome.tabs.create({ url: APP + pageOf(url, title.slice(0, TITLE)) });
});
